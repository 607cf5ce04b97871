-- One partition of `decisions` as it will be: what was there and stays, and what the batch brings.
select *
from decisions
anti join reread on decisions.detail ->> '$.uri' = reread.uri
where workload = $workload and stage = $stage
union all by name
select *
from new_decisions
where workload = $workload and stage = $stage

-- One partition of `interactions` as it will be: what was there and stays, and what the batch brings.
select interactions.*
from interactions
anti join reread on interactions.source_uri = reread.uri
anti join (select workload, interaction_id from judged where not fresh and not kept) as beaten
    using (workload, interaction_id)
where workload = $workload and dt = $dt
union all by name
select *
from new_interactions
where workload = $workload and dt = $dt

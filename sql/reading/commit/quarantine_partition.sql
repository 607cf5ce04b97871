-- One partition of `quarantine` as it will be: what was there and stays, and what the batch brings.
select *
from quarantine
anti join reread on quarantine.source_uri = reread.uri
where workload = $workload
union all by name
select *
from new_quarantine
where workload = $workload

-- One partition of `feedback` as it will be: what was there and stays, and what the batch brings.
select *
from feedback
anti join reread on feedback.source_uri = reread.uri
where workload = $workload and dt = $dt
union all by name
select *
from new_feedback
where workload = $workload and dt = $dt

-- A partition of `feedback` after this batch.
-- needs: feedback, new_feedback, reread
-- parameters: $dt, $workload
-- makes: rows (*)
select *
from feedback
anti join reread on feedback.source_uri = reread.uri
where workload = $workload and dt = $dt
union all by name
select *
from new_feedback
where workload = $workload and dt = $dt

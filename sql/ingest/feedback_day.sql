-- One partition of `feedback` as it will be.
select *
from feedback
anti join reread on feedback.source_uri = reread.uri
where workload = $workload and dt = $dt
union all by name
select * exclude (object, row, part, extra)
from staged_feedback
where workload = $workload and dt = $dt
order by ts, source_uri, source_row

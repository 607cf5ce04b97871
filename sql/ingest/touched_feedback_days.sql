select distinct workload, dt from staged_feedback
union
select distinct workload, dt
from feedback
semi join reread on feedback.source_uri = reread.uri
order by workload, dt

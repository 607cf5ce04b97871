-- Partitions of `interactions` that this batch changes: where rows come, and where rows of its objects or beaten rows go.
select distinct workload, dt
from judged
where kept = fresh
union
select distinct workload, dt
from interactions
semi join reread on interactions.source_uri = reread.uri
order by workload, dt

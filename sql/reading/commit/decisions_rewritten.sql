-- Partitions of `decisions` that lose rows, those of objects read anew, or whose rows name a copy that gives way to another.
create or replace temp table rewritten as
select distinct workload, stage
from decisions
semi join reread on decisions.detail ->> '$.uri' = reread.uri
where stage = 'ingest'
union
select distinct workload, 'ingest' as stage
from judged
where not fresh and not kept

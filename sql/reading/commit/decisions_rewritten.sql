-- Partitions of `decisions` that lose rows (objects read again) or whose rows name a copy that is replaced.
-- needs: decisions, reread, row_decisions
-- makes: temp table rewritten (workload, stage)
create or replace temp table rewritten as
select distinct workload, stage
from decisions
semi join reread on decisions.detail ->> '$.uri' = reread.uri
where stage = 'ingest'
union
select distinct workload, 'ingest' as stage
from row_decisions
where not fresh and not kept

-- Partitions of `decisions` that lose rows: those of objects read anew.
create or replace temp table rewritten as
select distinct workload, stage
from decisions
semi join reread on decisions.detail ->> '$.uri' = reread.uri
where stage = 'ingest'

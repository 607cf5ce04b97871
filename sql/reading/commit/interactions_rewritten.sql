-- Partitions of `interactions` that lose rows: those of objects read anew, and those that a fresh row beats.
create or replace temp table rewritten as
select distinct workload, dt
from interactions
semi join reread on interactions.source_uri = reread.uri
union
select distinct workload, dt
from judged
where not fresh and not kept

-- Partitions of `interactions` that lose rows: objects read again, and rows that a new copy replaces.
-- needs: interactions, reread, row_decisions
-- makes: temp table rewritten (workload, dt)
create or replace temp table rewritten as
select distinct workload, dt
from interactions
semi join reread on interactions.source_uri = reread.uri
union
select distinct workload, dt
from row_decisions
where not fresh and not kept

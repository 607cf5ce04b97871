-- Partitions of `feedback` that lose rows: objects read again.
-- needs: feedback, reread
-- makes: temp table rewritten (workload, dt)
create or replace temp table rewritten as
select distinct workload, dt
from feedback
semi join reread on feedback.source_uri = reread.uri

-- Partitions of `feedback` that lose rows: those of objects read anew.
create or replace temp table rewritten as
select distinct workload, dt
from feedback
semi join reread on feedback.source_uri = reread.uri

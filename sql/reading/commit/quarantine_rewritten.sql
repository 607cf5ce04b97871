-- Partitions of `quarantine` that lose rows: those of objects read anew.
create or replace temp table rewritten as
select distinct workload
from quarantine
semi join reread on quarantine.source_uri = reread.uri

-- Partitions of `quarantine` that lose rows: objects read again.
-- needs: quarantine, reread
-- makes: temp table rewritten (workload)
create or replace temp table rewritten as
select distinct workload
from quarantine
semi join reread on quarantine.source_uri = reread.uri

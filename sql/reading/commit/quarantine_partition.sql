-- A partition of `quarantine` after this batch.
-- needs: new_quarantine, quarantine, reread
-- parameters: $workload
-- makes: rows (*)
select *
from quarantine
anti join reread on quarantine.source_uri = reread.uri
where workload = $workload
union all by name
select *
from new_quarantine
where workload = $workload

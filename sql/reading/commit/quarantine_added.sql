-- New quarantine rows for partitions that lose no row.
-- needs: new_quarantine, rewritten
-- makes: rows (*)
select *
from new_quarantine
anti join rewritten using (workload)

-- New decisions for partitions that lose no row.
-- needs: new_decisions, rewritten
-- makes: rows (*)
select *
from new_decisions
anti join rewritten using (workload, stage)

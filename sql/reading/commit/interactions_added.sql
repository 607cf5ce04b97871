-- New interactions for partitions that lose no row.
-- needs: new_interactions, rewritten
-- makes: rows (*)
select *
from new_interactions
anti join rewritten using (workload, dt)

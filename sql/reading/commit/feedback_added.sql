-- New feedback for partitions that lose no row.
-- needs: new_feedback, rewritten
-- makes: rows (*)
select *
from new_feedback
anti join rewritten using (workload, dt)

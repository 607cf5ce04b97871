-- Feedback of some days with its new ties.
-- needs: tied
-- parameters: $days, $workload
-- makes: rows (*)
select * exclude (has_changed)
from tied
where workload = $workload and list_contains($days, dt)

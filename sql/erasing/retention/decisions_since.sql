-- A workload's decisions of one stage from a day on.
-- needs: decisions
-- parameters: $first_day, $stage, $workload
-- makes: rows (*)
select *
from decisions
where workload = $workload and stage = $stage and (dt is null or dt >= $first_day)

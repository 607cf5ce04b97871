-- Numbers of a workload's decisions on records before a day, by stage.
-- needs: decisions
-- parameters: $first_day, $workload
-- makes: rows (stage, decisions)
select stage, count(*) as decisions
from decisions
where workload = $workload and dt < $first_day
group by stage

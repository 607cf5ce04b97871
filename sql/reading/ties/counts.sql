-- Feedback of a workload by day and by what ties it.
-- $workload
select dt, tie, count(*) as records
from tied
where workload = $workload
group by dt, tie
order by dt, tie

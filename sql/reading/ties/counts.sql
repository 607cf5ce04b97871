-- Feedback of a workload by day and tie.
-- needs: tied
-- parameters: $workload
-- makes: rows (dt, tie, records)
select dt, tie, count(*) as records
from tied
where workload = $workload
group by dt, tie
order by dt, tie

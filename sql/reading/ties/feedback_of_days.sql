-- $workload, $days
select * exclude (is_news)
from tied
where workload = $workload and list_contains($days, dt)

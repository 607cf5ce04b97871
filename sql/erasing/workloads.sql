-- Selected rows by workload.
-- needs: selected
-- makes: rows (workload, selected, sessions)
select workload, count(*) as selected, count(distinct session_id) as sessions
from selected
group by workload
order by workload

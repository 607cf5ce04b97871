-- Days with feedback whose tie changed.
-- needs: tied
-- makes: rows (workload, dt)
select workload, dt
from tied
where has_changed
group by workload, dt
order by workload, dt

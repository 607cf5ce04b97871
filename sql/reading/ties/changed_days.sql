-- Days whose feedback is tied to something else than before.
select workload, dt
from tied
where is_news
group by workload, dt
order by workload, dt

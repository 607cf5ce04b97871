-- Sessions of a day, on average over the attached days.
-- needs: traffic
-- makes: rows (sessions)
select coalesce(avg(sessions), 0)::double as sessions
from (select dt, count(distinct session) as sessions from traffic group by dt)

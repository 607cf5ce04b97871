-- Feedback by day: numbers below 0 are bad, others good.
-- needs: feedback
-- makes: rows (dt, rated, bad)
select dt, count(*) as rated, count(*) filter (where value < 0) as bad
from feedback
where value is not null
group by dt
order by dt

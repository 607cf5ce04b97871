-- Feedback by day: values below the least good one of their name are bad, below 0 where none is set.
-- needs: feedback
-- parameters: $names, $least
-- makes: rows (dt, rated, bad)
select
    dt,
    count(*) as rated,
    count(*) filter (
        where value < coalesce(map(cast($names as varchar[]), cast($least as double[]))[name], 0)
    ) as bad
from feedback
where value is not null
group by dt
order by dt

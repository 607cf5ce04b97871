-- Mean points of a judge, by day.
-- needs: judgements
-- makes: rows (dt, points, judged)
select dt, avg(score) as points, count(*) as judged
from judgements
where name = 'quality' and score is not null
group by dt
order by dt

-- Days of feedback with comments.
-- needs: feedback
-- makes: rows (dt, rows)
select dt, count(*) as rows
from feedback
where comment is not null
group by dt
order by dt

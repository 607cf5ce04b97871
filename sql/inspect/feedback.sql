select name, count(*) as records, avg(value) as mean, count(*) filter (value < 0) as below_zero
from feedback
group by name
order by records desc, name

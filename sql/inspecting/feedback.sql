select
    name, count(*) as records, avg(value) as mean, count(*) filter (value < 0) as below_zero,
    count(*) filter (interaction_id is not null) as tied, count(*) filter (tie = 'several') as several
from feedback
group by name
order by records desc, name

-- Feedback by name: records, mean, how many are below zero, how many are tied to an interaction.
-- needs: feedback
-- makes: rows (name, records, mean, below_zero, tied, several)
select
    name, count(*) as records, avg(value) as mean, count(*) filter (value < 0) as below_zero,
    count(*) filter (interaction_id is not null) as tied, count(*) filter (tie = 'several') as several
from feedback
group by name
order by records desc, name

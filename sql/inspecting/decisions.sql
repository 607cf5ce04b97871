-- What the rules with their defaults would do with the sampled rows: each row once, by where it left.
select stage, rule, count(*) as rows
from decisions
where stage = 'curate' or (stage = 'clean' and not kept)
group by stage, rule
order by rows desc, stage, rule

-- What the default rules decide about the sampled rows, each row once.
-- needs: decisions
-- makes: rows (stage, rule, rows)
select stage, rule, count(*) as rows
from decisions
where stage = 'curate' or (stage = 'clean' and not kept)
group by stage, rule
order by rows desc, stage, rule

-- Why rows were dropped, by workload, stage and rule.
-- needs: decisions
-- makes: rows (workload, stage, rule, dropped)
select workload, stage, rule, count(*) as dropped
from decisions
where not kept
group by all
order by workload, dropped desc, stage, rule

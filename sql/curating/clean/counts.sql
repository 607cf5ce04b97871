-- Number of rows by day and rule.
-- needs: broken_rules, facts
-- makes: rows (dt, rule, rows)
select dt, coalesce(broken_rules.rule, 'kept') as rule, count(*) as rows
from facts
left join broken_rules using (interaction_id)
group by all
order by all

-- Rows by day and rule.
select dt, coalesce(judged.rule, 'kept') as rule, count(*) as rows
from facts
left join judged using (interaction_id)
group by all
order by all

-- One decision per row of these days, by the rules on single rows.
-- needs: broken_rules, facts
-- makes: rows (workload, stage, version, dt, interaction_id, rule, kept, detail, kept_id)
select
    workload, 'clean' as stage, '' as version, dt, facts.interaction_id,
    coalesce(broken_rules.rule, 'kept') as rule,
    broken_rules.rule is null as kept,
    nullif(broken_rules.detail, '') as detail,
    cast(null as varchar) as kept_id
from facts
left join broken_rules using (interaction_id)
order by dt, facts.interaction_id

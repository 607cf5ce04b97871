-- Why each row of these days left or stayed, by itself.
select
    workload, 'clean' as stage, '' as version, dt, facts.interaction_id,
    coalesce(judged.rule, 'kept') as rule,
    judged.rule is null as kept,
    nullif(judged.detail, '') as detail,
    cast(null as varchar) as kept_id
from facts
left join judged using (interaction_id)
order by dt, facts.interaction_id

-- Why each row of these days left or stayed, by its status alone.
select
    workload, 'clean' as stage, '' as version, dt, interaction_id,
    case when status = 'ok' then 'kept' else status end as rule,
    status = 'ok' as kept,
    cast(null as varchar) as detail,
    cast(null as varchar) as kept_id
from facts
order by dt, interaction_id

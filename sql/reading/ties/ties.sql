-- What each id that feedback names stands for: one interaction of its workload, several, none, or only another workload's. A request's
-- own id goes before the second one that a gateway gave it.
create or replace temp table ties as
with asked as (
    select distinct workload, telling, about
    from feedback_said
),

found as (
    select
        asked.workload, asked.telling, asked.about, names.tie, names.workload = asked.workload as is_own,
        count(distinct names.interaction_id) as matches, min(names.interaction_id) as interaction_id
    from asked
    inner join feedback_names as names using (telling, about)
    group by all
),

nearest as (
    select *
    from found
    where is_own
    qualify row_number() over (partition by workload, telling, about order by tie = 'gateway') = 1
)

select
    workload, telling, about,
    case when nearest.matches = 1 then nearest.interaction_id end as interaction_id,
    case
        when nearest.matches = 1 then nearest.tie
        when nearest.matches > 1 then 'several'
        when others.about is not null then 'elsewhere'
        else 'unknown'
    end as tie
from asked
left join nearest using (workload, telling, about)
left join (select distinct workload, telling, about from found where not is_own) as others using (workload, telling, about)

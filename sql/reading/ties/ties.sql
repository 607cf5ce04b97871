-- The interaction that each id of feedback belongs to: exactly one, several, none, or one of another workload. A request's own
-- id goes before the id that a gateway added.
-- needs: feedback_by_id, interaction_ids
-- makes: temp table ties (workload, id_rank, named_id, interaction_id, tie)
create or replace temp table ties as
with named as (
    select distinct workload, id_rank, named_id
    from feedback_by_id
),

found as (
    select
        named.workload, named.id_rank, named.named_id, candidates.tie, candidates.workload = named.workload as is_own,
        count(distinct candidates.interaction_id) as matches, min(candidates.interaction_id) as interaction_id
    from named
    inner join interaction_ids as candidates using (id_rank, named_id)
    group by all
),

preferred as (
    select *
    from found
    where is_own
    qualify row_number() over (partition by workload, id_rank, named_id order by tie = 'gateway') = 1
)

select
    workload, id_rank, named_id,
    case when preferred.matches = 1 then preferred.interaction_id end as interaction_id,
    case
        when preferred.matches = 1 then preferred.tie
        when preferred.matches > 1 then 'several'
        when others.named_id is not null then 'elsewhere'
        else 'unknown'
    end as tie
from named
left join preferred using (workload, id_rank, named_id)
left join (select distinct workload, id_rank, named_id from found where not is_own) as others using (workload, id_rank, named_id)

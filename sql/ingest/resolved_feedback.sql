-- Feedback beside the interactions it is about: by id, by request, by trace, else by session. Run at use time, so that it
-- does not matter which arrived first. Of several judgements of one name the latest counts.
with keyed as (
    select row_number() over () as judgement, * from feedback
),

matches as (
    select keyed.judgement, interactions.interaction_id, 1 as closeness
    from keyed
    inner join interactions on keyed.workload = interactions.workload
        and keyed.interaction_id = interactions.interaction_id
    union all
    select keyed.judgement, interactions.interaction_id, 2 as closeness
    from keyed
    inner join interactions on keyed.workload = interactions.workload and keyed.request_id = interactions.request_id
    union all
    select keyed.judgement, interactions.interaction_id, 2 as closeness
    from keyed
    inner join interactions on keyed.workload = interactions.workload and keyed.request_id = interactions.alias_id
    union all
    select keyed.judgement, interactions.interaction_id, 3 as closeness
    from keyed
    inner join interactions on keyed.workload = interactions.workload and keyed.trace_id = interactions.trace_id
    union all
    select keyed.judgement, interactions.interaction_id, 4 as closeness
    from keyed
    inner join interactions on keyed.workload = interactions.workload and keyed.session_id = interactions.session_id
),

closest as (
    select * from matches
    qualify closeness = min(closeness) over (partition by judgement)
)

select
    closest.interaction_id, keyed.name, keyed.value, keyed.label, keyed.source, keyed.comment, keyed.ts,
    closest.closeness
from closest
inner join keyed using (judgement)
qualify row_number() over (
    partition by closest.interaction_id, keyed.name order by
        closest.closeness, keyed.ts desc, keyed.value, keyed.source_uri, keyed.source_row desc, keyed.label, keyed.comment
) = 1
order by closest.interaction_id, keyed.name

-- What an earlier response put before the messages of each request that names one: the messages and answers of the chain, oldest
-- first, without the instructions of other requests, which the API does not carry on. Null where the log lacks a part of the chain,
-- whatever order it arrived in. responses: all interactions of the workload. $days: of rows of these days; null: of all.
-- needs: responses
-- parameters: $days
-- makes: temp table chains (interaction_id, dt, earlier)
create or replace temp table chains as
with recursive links as (
    select
        interaction_id, dt, source, request_id,
        if(emptied is null, params ->> '$.context.previous_response_id', null) as previous,
        emptied is null and status = 'success' and completion is not null
        and (params ->> '$.context.elsewhere') is null as is_known
    from responses
),

named as (
    select source, request_id, any_value(interaction_id) as interaction_id, any_value(previous) as previous,
        bool_and(is_known) and count(*) = 1 as is_known
    from links
    where request_id in (select previous from links)
    group by source, request_id
),

walk as (
    select
        links.interaction_id, links.dt, links.source, 1 as place, links.previous, named.interaction_id as earlier_id,
        named.previous as before, coalesce(named.is_known, false) as is_known
    from links
    left join named on named.source = links.source and named.request_id = links.previous
    where links.previous is not null and ($days is null or list_contains($days::date[], links.dt))
    union all
    select
        walk.interaction_id, walk.dt, walk.source, walk.place + 1, walk.before, named.interaction_id, named.previous,
        coalesce(named.is_known, false)
    from walk
    left join named on named.source = walk.source and named.request_id = walk.before
    where walk.before is not null and walk.is_known and walk.place < 1000
),

said as (
    select
        interaction_id as earlier_id,
        list_append(
            try_cast(messages as json[])[if(coalesce(params -> '$.context.has_instructions', 'false') = 'true', 2, 1):],
            try_cast(completion as json)
        ) as turns
    from responses
    semi join walk on walk.earlier_id = responses.interaction_id
)

select
    walk.interaction_id, any_value(walk.dt) as dt,
    case
        when bool_and(walk.is_known) and count(*) filter (walk.before is null) = 1
            then flatten(list(said.turns order by walk.place desc))
    end as earlier
from walk
left join said using (earlier_id)
group by walk.interaction_id

-- Feedback of OASST trees: people's rank of each answer to one message; 0 is the best.
-- needs: records
-- makes: rows (object, row, part, extra, about_part, name, written_value, source, written_ts)
with recursive nodes as (
    select
        object, row, raw -> '$.prompt' as node, [1] as place, cast([] as json[]) as path, 1 as siblings
    from records
    union all
    select
        object, row,
        unnest(replies) as node,
        list_append(place, generate_subscripts(replies, 1)) as place,
        list_append(path, json_object(
            'role', case node ->> '$.role' when 'prompter' then 'user' else node ->> '$.role' end,
            'content', node ->> '$.text'
        )) as path,
        len(replies) as siblings
    from (
        select
            *,
            list_filter(
                coalesce(try_cast(node -> '$.replies' as json[]), []),
                lambda reply: coalesce(reply ->> '$.deleted', 'false') <> 'true'
            ) as replies
        from nodes
        where len(place) < 200
    )
),

answers as (
    select *, row_number() over (partition by object, row order by place) - 1 as part
    from nodes
    where node ->> '$.role' = 'assistant'
),

ranked as (
    select *, try_cast(node ->> '$.rank' as double) as rank, place[:len(place) - 1] as parent
    from answers
),

spread as (
    select *, max(rank) over (partition by object, row, parent) as last_rank
    from ranked
)

select
    object,
    row,
    part,
    true as extra,
    part as about_part,
    'preference' as name,
    cast(1 - 2 * rank / last_rank as varchar) as written_value,
    'rank' as source,
    node ->> '$.created_date' as written_ts
from spread
where rank is not null and last_rank > 0

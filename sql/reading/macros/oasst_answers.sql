-- The assistant's messages of OASST trees: one row per answer, numbered in reading order (`part`), with its JSON (`node`),
-- its position in the tree (`place`), and the messages before it (`path`). The tree is read level by level; deleted messages
-- and their replies are left out.
-- needs: records
-- makes: macro oasst_answers() as rows (object, row, node, place, path, part)
create or replace temp macro oasst_answers() as table
with recursive nodes as (
    select object, row, raw -> '$.prompt' as node, [1] as place, cast([] as json[]) as path
    from records
    union all
    select
        object, row,
        unnest(replies) as node,
        list_append(place, generate_subscripts(replies, 1)) as place,
        list_append(path, json_object(
            'role', case node ->> '$.role' when 'prompter' then 'user' else node ->> '$.role' end,
            'content', node ->> '$.text'
        )) as path
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
)
select
    object, row, node, place, path,
    row_number() over (partition by object, row order by place) - 1 as part
from nodes
where node ->> '$.role' = 'assistant'

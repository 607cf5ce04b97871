-- Interactions of OASST trees: one row per answer. The tree is read level by level; parts are numbered in reading order.
-- needs: records
-- makes: rows (object, row, part, format, request_id, trace_id, choice_index, written_ts, session_id, user_id, model,
--     messages, completion, finish_reason, status, error_code, message)
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
)

select
    records.object,
    records.row,
    coalesce(answers.part, 0) as part,
    'oasst' as format,
    node ->> '$.message_id' as request_id,
    raw ->> '$.message_tree_id' as trace_id,
    0 as choice_index,
    node ->> '$.created_date' as written_ts,
    raw ->> '$.message_tree_id' as session_id,
    node ->> '$.user_id' as user_id,
    node ->> '$.model_name' as model,
    to_json(path) as messages,
    json_object('role', 'assistant', 'content', node ->> '$.text') as completion,
    'stop' as finish_reason,
    'success' as status,
    case when answers.part is null then 'missing_field' end as error_code,
    case when answers.part is null then 'the tree holds no message of the assistant' end as message
from records
left join answers using (object, row)

-- name: feedback
-- Feedback of OASST trees: people's ranking of the answers to a message; rank 0 is the best.
with ranked as (
    select *, try_cast(node ->> '$.rank' as double) as rank, place[:len(place) - 1] as parent
    from oasst_answers()
),
spread as (
    select *, max(rank) over (partition by object, row, parent) as last_rank
    from ranked
)
select
    object, row, part, true as extra, part as about_part,
    'preference' as name,
    cast(1 - 2 * rank / last_rank as varchar) as written_value,
    'rank' as source,
    node ->> '$.created_date' as written_ts
from spread
where rank is not null and last_rank > 0

-- name: interactions
-- Interactions of OASST trees: one row per answer.
select
    records.object,
    records.row,
    coalesce(answers.part, 0) as part,
    'oasst' as format,
    node ->> '$.message_id' as request_id,
    raw ->> '$.message_tree_id' as trace_id,
    0 as choice_index,
    node ->> '$.created_date' as written_ts, raw ->> '$.message_tree_id' as session_id, node ->> '$.user_id' as user_id,
    node ->> '$.model_name' as model,
    to_json(path) as messages,
    json_object('role', 'assistant', 'content', node ->> '$.text') as completion,
    'stop' as finish_reason,
    'success' as status,
    case when answers.part is null then 'missing_field' end as error_code,
    case when answers.part is null then 'the tree holds no message of the assistant' end as message
from records
left join oasst_answers() as answers using (object, row)

-- Interactions of agent trajectories: one row per answer.
-- needs: record_digest(), records
-- makes: rows (object, row, part, format, record_digest, request_id, trace_id, choice_index, written_ts, session_id, model,
--     messages, tools, completion, finish_reason, status, error_code, message)
with parsed as (
    select
        object,
        row,
        raw,
        json_transform(raw, '{
            "task_id": "VARCHAR", "trial": "VARCHAR", "timestamp": "VARCHAR", "model": "VARCHAR",
            "tools": "JSON", "traj": ["JSON"]
        }') as record
    from records
),

conversations as (
    select
        *,
        record_digest(raw) as digest,
        concat_ws(':', nullif(concat_ws('/', record.task_id, record.trial), ''), digest[:16]) as conversation,
        list_filter(
            range(2, coalesce(len(record.traj), 0) + 1),
            lambda place: record.traj[place] ->> '$.role' = 'assistant'
        ) as answers
    from parsed
),

turns as (
    select
        *,
        unnest(case when len(answers) > 0 then answers else [null] end) as answer,
        unnest(range(greatest(len(answers), 1))) as part
    from conversations
)

select
    object,
    row,
    part,
    'trajectories' as format,
    digest as record_digest,
    concat(conversation, '#', part) as request_id,
    conversation as trace_id,
    0 as choice_index,
    record.timestamp as written_ts,
    conversation as session_id,
    record.model as model,
    to_json(record.traj[:answer - 1]) as messages,
    record.tools as tools,
    record.traj[answer] as completion,
    case when json_array_length(record.traj[answer], '$.tool_calls') > 0 then 'tool_calls' else 'stop' end
        as finish_reason,
    'success' as status,
    case when answer is null then 'missing_field' end as error_code,
    case when answer is null then 'traj has no assistant message after the first message' end as message
from turns

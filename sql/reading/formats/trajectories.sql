-- name: feedback
-- Feedback of agent trajectories: the reward.
with parsed as (
    select
        object, row, raw,
        json_transform(raw, '{
            "task_id": "VARCHAR", "trial": "VARCHAR", "reward": "VARCHAR", "timestamp": "VARCHAR", "traj": ["JSON"]
        }') as record
    from records
)
select
    object,
    row,
    0 as part,
    true as extra,
    concat_ws(':', nullif(concat_ws('/', record.task_id, record.trial), ''), record_digest(raw)[:16]) as session_id,
    'reward' as name,
    record.reward as written_value,
    'outcome' as source,
    record.timestamp as written_ts
from parsed
where record.reward is not null
    and len(list_filter(record.traj[2:], lambda each: each ->> '$.role' = 'assistant')) > 0

-- name: interactions
-- Interactions of agent trajectories: one row per answer.
with parsed as (
    select
        object, row, raw,
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
    object, row, part,
    'trajectories' as format,
    digest as record_digest,
    concat(conversation, '#', part) as request_id,
    conversation as trace_id,
    0 as choice_index,
    record.timestamp as written_ts, conversation as session_id, record.model as model,
    to_json(record.traj[:answer - 1]) as messages,
    record.tools as tools,
    record.traj[answer] as completion,
    case when json_array_length(record.traj[answer], '$.tool_calls') > 0 then 'tool_calls' else 'stop' end
        as finish_reason,
    'success' as status,
    case when answer is null then 'missing_field' end as error_code,
    case when answer is null then 'traj has no assistant message after the first message' end as message
from turns

-- Feedback of agent trajectories: the reward.
-- needs: record_digest(), records
-- makes: rows (object, row, part, extra, session_id, name, written_value, source, written_ts)
with parsed as (
    select
        object,
        row,
        raw,
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

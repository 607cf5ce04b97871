-- name: feedback
-- Feedback of plain records: an id, a value or label, and the name of the question.
with parsed as (
    select
        object,
        row,
        json_transform(raw, '{
            "response_id": "VARCHAR", "request_id": "VARCHAR", "completion_id": "VARCHAR", "trace_id": "VARCHAR",
            "session_id": "VARCHAR", "conversation_id": "VARCHAR", "interaction_id": "VARCHAR", "user_id": "VARCHAR",
            "workload_id": "VARCHAR", "workload": "VARCHAR", "name": "VARCHAR", "metric": "VARCHAR",
            "value": "VARCHAR", "score": "VARCHAR", "rating": "VARCHAR", "reward": "VARCHAR", "thumb": "VARCHAR",
            "thumbs": "VARCHAR", "feedback": "VARCHAR", "label": "VARCHAR", "source": "VARCHAR", "comment": "VARCHAR", "text": "VARCHAR",
            "timestamp": "VARCHAR", "ts": "VARCHAR", "created_at": "VARCHAR"
        }') as record
    from records
)

select
    object,
    row,
    0 as part,
    false as extra,
    coalesce(record.response_id, record.request_id, record.completion_id) as request_id,
    record.trace_id as trace_id,
    coalesce(record.session_id, record.conversation_id) as session_id,
    record.user_id as user_id,
    record.interaction_id as interaction_id,
    coalesce(record.workload_id, record.workload) as workload_name,
    coalesce(record.name, record.metric, case when coalesce(record.thumb, record.thumbs) is null then 'feedback'
             else 'thumbs' end) as name,
    coalesce(record.value, record.score, record.rating, record.reward, record.thumb, record.thumbs, record.feedback,
             record.label) as written_value,
    record.label as label,
    record.source as source,
    coalesce(record.comment, record.text) as comment,
    logged_time(record.timestamp, record.ts, record.created_at) as written_ts
from parsed

-- name: feedback
-- Feedback of plain records: an id, a value or label, and the name of the question. guessed_time: what else names a time and is one.
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
            "timestamp": "VARCHAR", "ts": "VARCHAR", "created_at": "VARCHAR", "key": "VARCHAR", "run_id": "VARCHAR"
        }') as record,
        raw
    from records
),
timed as (
    select
        *,
        json_exists(raw, '$.thumb') or json_exists(raw, '$.thumbs') as is_thumb,
        case when coalesce(record.timestamp, record.ts, record.created_at) is null then list_filter(
            list_transform(
                list_filter(json_keys(raw), lambda key: not contains(key, '"') and regexp_full_match(lower(replace(key, ' ', '_')), concat(
                    '(.*_)?(when|at|date|datetime|time|timestamp|ts)(_?(utc|ms|s))?|',
                    '(created|updated|submitted|rated|voted|given|logged|recorded|sent)_?(at|on|time|date|ts)?'
                ))),
                lambda key: raw ->> concat('$."', key, '"')
            ),
            lambda written: moment(written) is not null
        )[1] end as guessed_time
    from parsed
)
select
    object,
    row,
    0 as part,
    false as extra,
    -- LangSmith's trace has the id of its first run
    coalesce(
        record.response_id, record.request_id, record.completion_id, case when record.run_id is distinct from record.trace_id then record.run_id end
    ) as request_id,
    record.trace_id as trace_id,
    -- LangSmith's session is a project
    case when record.run_id is null or record.key is null then coalesce(record.session_id, record.conversation_id) end as session_id,
    record.user_id as user_id,
    record.interaction_id as interaction_id,
    coalesce(record.workload_id, record.workload) as workload_name,
    coalesce(
        record.name, record.metric, case when record.run_id is not null then record.key end, if(is_thumb, 'thumbs', 'feedback')
    ) as name,
    coalesce(record.value, record.score, record.rating, record.reward, record.thumb, record.thumbs, record.feedback,
             record.label) as written_value,
    record.label as label,
    record.source as source,
    coalesce(record.comment, record.text) as comment,
    coalesce(logged_time(record.timestamp, record.ts, record.created_at), guessed_time) as written_ts
from timed

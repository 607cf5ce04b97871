-- name: feedback
-- Feedback of edits: the correction, tied by the ids of the record and, where these are of no single request, by what the model said.
-- A rating beside it is a further part; beside an empty correction it is the only one.
with parsed as (
    select
        object,
        row,
        json_transform(edit_of(raw), '{
            "request_id": "VARCHAR", "trace_id": "VARCHAR", "session_id": "VARCHAR", "answer_id": "VARCHAR", "corrected": "VARCHAR",
            "label": "VARCHAR"
        }') as edit,
        json_transform(raw, '{
            "workload_id": "VARCHAR", "workload": "VARCHAR", "name": "VARCHAR", "key": "VARCHAR", "value": "VARCHAR", "score": "VARCHAR",
            "rating": "VARCHAR", "source": "VARCHAR", "comment": "VARCHAR", "timestamp": "VARCHAR", "ts": "VARCHAR",
            "created_at": "VARCHAR", "edited_at": "VARCHAR"
        }') as record
    from records
),
told as (
    select
        *,
        coalesce(edit.request_id, edit.trace_id, edit.session_id) is not null as has_id,
        coalesce(record.score, record.value, record.rating) as rating,
        unnest(list_concat(
            case when edit.corrected is not null or not has_id or rating is null then ['correction'] else [] end,
            case when has_id and rating is not null then ['rating'] else [] end
        )) as what
    from parsed
)
select
    object,
    row,
    row_number() over (partition by object, row order by what) - 1 as part,
    part > 0 as extra,
    coalesce(edit.request_id, if(has_id, null, edit.answer_id)) as request_id,
    edit.trace_id as trace_id,
    edit.session_id as session_id,
    case when what = 'correction' and has_id then edit.answer_id end as answer_id,
    coalesce(record.workload_id, record.workload) as workload_name,
    case when what = 'rating' then coalesce(record.key, record.name, 'feedback') else 'correction' end as name,
    case when what = 'rating' then rating end as written_value,
    case when what <> 'rating' then edit.label end as label,
    coalesce(record.source, 'edit') as source,
    case when what = 'rating' then record.comment else edit.corrected end as comment,
    logged_time(record.edited_at, record.timestamp, record.ts, record.created_at) as written_ts
from told

-- name: interactions
-- Plain texts: status `text`, no messages.
with parsed as (
    select
        object,
        row,
        record_digest(raw) as digest,
        json_transform(raw, '{
            "id": "VARCHAR", "session_id": "VARCHAR", "timestamp": "VARCHAR", "workload_id": "VARCHAR", "text": "JSON"
        }') as record
    from records
)
select
    object,
    row,
    0 as part,
    'text' as format,
    digest as record_digest, record.id as request_id, record.id as trace_id,
    0 as choice_index,
    record.timestamp as written_ts,
    record.workload_id as workload_name,
    coalesce(record.session_id, record.id || ':' || digest[:16]) as session_id,
    '[]' as messages,
    to_json(struct_pack("role" := 'assistant', "content" := record.text ->> '$')) as completion,
    'text' as status,
    case when coalesce(json_type(record.text), '') <> 'VARCHAR' or trim(record.text ->> '$') = '' then 'missing_field' end
        as error_code,
    case when coalesce(json_type(record.text), '') <> 'VARCHAR' or trim(record.text ->> '$') = ''
        then 'text is not a text, or says nothing' end as message
from parsed

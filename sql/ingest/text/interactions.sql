with parsed as (
    select
        object,
        row,
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
    record.id as request_id,
    0 as choice_index,
    record.timestamp as written_ts,
    record.workload_id as workload_name,
    coalesce(record.session_id, record.id) as session_id,
    '[]' as messages,
    to_json(struct_pack("role" := 'assistant', "content" := record.text ->> '$')) as completion,
    'text' as status,
    case when coalesce(json_type(record.text), '') <> 'VARCHAR' or trim(record.text ->> '$') = '' then 'missing_field' end
        as error_code,
    case when coalesce(json_type(record.text), '') <> 'VARCHAR' or trim(record.text ->> '$') = ''
        then 'text is not a text, or says nothing' end as message
from parsed

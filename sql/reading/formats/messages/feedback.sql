-- Feedback of records with `messages`: a label that is true or false says whether the last answer is wanted.
-- needs: records
-- makes: rows (object, row, part, extra, about_part, workload_name, name, written_value, source, written_ts)
with parsed as (
    select
        object,
        row,
        json_transform(raw, '{
            "label": "JSON", "timestamp": "VARCHAR", "workload_id": "VARCHAR", "messages": ["JSON"]
        }') as record
    from records
    where contains(raw, '"label"')
)

select
    object,
    row,
    0 as part,
    true as extra,
    len(list_filter(
        range(2, len(record.messages) + 1),
        lambda place: record.messages[place] ->> '$.role' = 'assistant'
            and coalesce(record.messages[place] ->> '$.weight', '1') not in ('0', '0.0')
    )) - 1 as about_part,
    record.workload_id as workload_name,
    'preference' as name,
    cast(record.label as varchar) as written_value,
    'label' as source,
    record.timestamp as written_ts
from parsed
where json_type(record.label) = 'BOOLEAN'
    and record.messages[-1] ->> '$.role' = 'assistant'
    and coalesce(record.messages[-1] ->> '$.weight', '1') not in ('0', '0.0')

-- Feedback of prompt-completion records: a label that is true or false says whether the completion is wanted.
-- needs: records
-- makes: rows (object, row, part, extra, about_part, workload_name, name, written_value, source, written_ts)
with parsed as (
    select
        object,
        row,
        json_transform(raw, '{
            "label": "JSON", "timestamp": "VARCHAR", "workload_id": "VARCHAR", "completion": "JSON", "response": "JSON",
            "answer": "JSON"
        }') as record
    from records
    where contains(raw, '"label"')
)

select
    object,
    row,
    0 as part,
    true as extra,
    0 as about_part,
    record.workload_id as workload_name,
    'preference' as name,
    cast(record.label as varchar) as written_value,
    'label' as source,
    record.timestamp as written_ts
from parsed
where json_type(record.label) = 'BOOLEAN' and coalesce(record.completion, record.response, record.answer) is not null

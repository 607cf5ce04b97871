-- Feedback in records that a source's `fields` maps: it is about the first choice of the answer.
-- needs: records
-- makes: rows (object, row, part, extra, about_part, workload_name, name, written_value, source, written_ts)
with parsed as (
    select
        object,
        row,
        json_transform(raw, '{"feedback": "VARCHAR", "timestamp": "VARCHAR", "workload_id": "VARCHAR"}') as record
    from records
    where contains(raw, '"feedback"')
)

select
    object,
    row,
    0 as part,
    true as extra,
    0 as about_part,
    record.workload_id as workload_name,
    'feedback' as name,
    record.feedback as written_value,
    'fields' as source,
    record.timestamp as written_ts
from parsed
where record.feedback is not null

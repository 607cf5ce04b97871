-- Feedback of preference records: part 0 is the chosen answer, part 1 the rejected one.
-- needs: records
-- makes: rows (object, row, part, extra, about_part, workload_name, name, written_value, source, written_ts)
with parsed as (
    select
        object,
        row,
        json_transform(raw, '{"timestamp": "VARCHAR", "workload_id": "VARCHAR"}') as record
    from records
)

select
    object,
    row,
    unnest([0, 1]) as part,
    true as extra,
    unnest([0, 1]) as about_part,
    record.workload_id as workload_name,
    'preference' as name,
    unnest(['1', '-1']) as written_value,
    'preferences' as source,
    record.timestamp as written_ts
from parsed

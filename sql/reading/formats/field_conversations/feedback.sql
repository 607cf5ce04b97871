-- Feedback in conversations that a source's `fields` maps: it is about each of the answers.
-- needs: records
-- makes: rows (object, row, part, extra, about_part, workload_name, name, written_value, source, written_ts)
with parsed as (
    select
        object,
        row,
        json_transform(raw, '{
            "metadata": {"feedback": "VARCHAR"}, "timestamp": "VARCHAR", "workload_id": "VARCHAR", "messages": ["JSON"]
        }') as record
    from records
    where contains(raw, '"feedback"')
),

answered as (
    select
        *,
        unnest(range(len(list_filter(
            range(2, len(record.messages) + 1),
            lambda place: record.messages[place] ->> '$.role' = 'assistant'
                and coalesce(record.messages[place] ->> '$.weight', '1') not in ('0', '0.0')
        )))) as answer
    from parsed
    where record.metadata.feedback is not null
)

select
    object,
    row,
    cast(answer as integer) as part,
    true as extra,
    cast(answer as integer) as about_part,
    record.workload_id as workload_name,
    'feedback' as name,
    record.metadata.feedback as written_value,
    'fields' as source,
    record.timestamp as written_ts
from answered

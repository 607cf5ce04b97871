-- name: feedback
-- Feedback of Langfuse scores.
with parsed as (
    select
        object,
        row,
        json_transform(raw, '{
            "observation_id": "VARCHAR", "trace_id": "VARCHAR", "session_id": "VARCHAR", "name": "VARCHAR",
            "value": "VARCHAR", "string_value": "VARCHAR", "long_string_value": "VARCHAR", "data_type": "VARCHAR", "source": "VARCHAR",
            "comment": "VARCHAR", "timestamp": "VARCHAR", "created_at": "VARCHAR",
            "metadata": {"workload_id": "VARCHAR", "workload": "VARCHAR"}
        }') as record
    from records
),
about as (
    select
        *,
        nullif(record.observation_id, '') as observation_id,
        nullif(record.trace_id, '') as trace_id,
        nullif(record.string_value, '') as word
    from parsed
)
select
    object,
    row,
    0 as part,
    false as extra,
    observation_id as request_id,
    case when observation_id is null then trace_id end as trace_id,
    case when observation_id is null and trace_id is null then nullif(record.session_id, '') end as session_id,
    coalesce(record.metadata.workload_id, record.metadata.workload) as workload_name,
    if(record.data_type = 'CORRECTION', 'correction', record.name) as name,
    case record.data_type
        when 'BOOLEAN' then case
            when record.value is null then word
            when coalesce(try_cast(record.value as double), 0) = 0 and record.value <> 'true' then 'false'
            else 'true'
        end
        when 'CATEGORICAL' then word
        when 'TEXT' then word
        when 'CORRECTION' then null
        else record.value
    end as written_value,
    if(record.data_type = 'CORRECTION', 'corrected', word) as label,
    record.source as source,
    if(record.data_type = 'CORRECTION', coalesce(record.long_string_value, word), record.comment) as comment,
    logged_time(record.timestamp, record.created_at) as written_ts
from about

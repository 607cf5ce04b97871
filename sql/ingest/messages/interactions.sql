with parsed as (
    select
        object,
        row,
        json_transform(raw, '{
            "id": "VARCHAR", "session_id": "VARCHAR", "timestamp": "VARCHAR", "workload_id": "VARCHAR",
            "model": "VARCHAR", "tools": "JSON", "functions": "JSON",
            "messages": ["JSON"]
        }') as record
    from records
),

answers as (
    select
        *,
        list_filter(
            range(1, coalesce(len(record.messages), 0) + 1),
            lambda place: record.messages[place] ->> '$.role' = 'assistant'
                and coalesce(record.messages[place] ->> '$.weight', '1') not in ('0', '0.0')
        )[-1] as answer
    from parsed
)

select
    object,
    row,
    0 as part,
    'messages' as format,
    record.id as request_id,
    0 as choice_index,
    record.timestamp as written_ts,
    record.workload_id as workload_name,
    coalesce(record.session_id, record.id) as session_id,
    record.model as model,
    to_json(record.messages[:answer - 1]) as messages,
    record.tools as tools,
    record.messages[answer] as completion,
    'stop' as finish_reason,
    'success' as status,
    case
        when record.messages is null then 'wrong_type'
        when answer is null or answer = 1 then 'missing_field'
    end as error_code,
    case
        when record.messages is null then 'messages is not a list'
        when answer is null then 'messages has no assistant message to learn from'
        when answer = 1 then 'messages has nothing before the assistant message'
    end as message
from answers

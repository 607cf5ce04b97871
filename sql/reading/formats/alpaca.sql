-- name: interactions
-- Interactions of Alpaca records: instruction, input, output.
with parsed as (
    select
        object,
        row,
        record_digest(raw) as digest,
        example_prompt(raw) as told,
        json_transform(raw, '{
            "id": "VARCHAR", "session_id": "VARCHAR", "timestamp": "VARCHAR", "workload_id": "VARCHAR",
            "model": "VARCHAR", "generator": "VARCHAR", "output": "JSON", "response": "JSON"
        }') as record
    from records
),
requests as (
    select
        *,
        openai_messages(told.messages, 'user') as question,
        openai_messages(coalesce(record.output, record.response), 'assistant') as answers
    from parsed
)
select
    object,
    row,
    0 as part,
    'alpaca' as format,
    digest as record_digest, record.id as request_id, record.id as trace_id,
    0 as choice_index,
    record.timestamp as written_ts,
    record.workload_id as workload_name,
    coalesce(record.session_id, record.id || ':' || digest[:16]) as session_id,
    coalesce(record.model, record.generator) as model,
    to_json(question) as messages,
    answers[1] as completion,
    'stop' as finish_reason,
    'success' as status,
    case
        when told.problem is not null then 'wrong_type'
        when len(question) = 0 or len(answers) <> 1 then 'missing_field'
    end as error_code,
    case
        when told.problem is not null then told.problem
        when len(question) = 0 then 'the example has neither instruction nor input'
        when len(answers) <> 1 then 'the example has no text as its output or response'
    end as message
from requests

-- name: interactions
-- Interactions of ShareGPT conversations: one row per answer.
with parsed as (
    select
        object, row, raw,
        example_prompt(raw) as told,
        json_transform(raw, '{
            "id": "VARCHAR", "conversation_id": "VARCHAR", "session_id": "VARCHAR", "timestamp": "VARCHAR",
            "workload_id": "VARCHAR", "model": "VARCHAR", "tools": "JSON",
            "conversations": "JSON", "conversation": "JSON"
        }') as record
    from records
),
conversations as (
    select
        object, row, record, told.problem as problem,
        openai_messages(coalesce(told.messages, record.conversations, record.conversation), 'user') as all_messages,
        record_digest(raw) as digest,
        coalesce(
            record.session_id, record.conversation_id, record.id || ':' || digest[:16], 'conversation:' || digest
        ) as session
    from parsed
),
answered as (
    select
        *,
        len(list_filter(all_messages, lambda message: message ->> '$.role' is null)) as nobody,
        list_filter(
            range(2, len(all_messages) + 1),
            lambda place: all_messages[place] ->> '$.role' = 'assistant'
                and coalesce(all_messages[place] ->> '$.weight', '1') not in ('0', '0.0')
        ) as answers
    from conversations
),
turned as (
    select
        *,
        unnest(case when nobody = 0 and len(answers) > 0 then answers else [null] end) as answer,
        unnest(range(case when nobody = 0 then greatest(len(answers), 1) else 1 end)) as part
    from answered
)
select
    object, row, part,
    'sharegpt' as format,
    digest as record_digest,
    coalesce(record.id, record.conversation_id) || '#' || part as request_id,
    coalesce(record.id, record.conversation_id) as trace_id,
    0 as choice_index,
    record.timestamp as written_ts, record.workload_id as workload_name, session as session_id, record.model as model,
    to_json(all_messages[:answer - 1]) as messages,
    openai_tools(record.tools) as tools,
    all_messages[answer] as completion,
    case when (all_messages[answer] -> '$.tool_calls') is null then 'stop' else 'tool_calls' end as finish_reason,
    'success' as status,
    case
        when problem is not null then 'wrong_type'
        when len(all_messages) = 0 or nobody > 0 then 'wrong_type'
        when answer is null then 'missing_field'
    end as error_code,
    case
        when problem is not null then problem
        when len(all_messages) = 0 then 'conversations is not a list of messages'
        when nobody > 0 then 'a message is of a speaker that is not known, or a function_call that is no JSON with a name'
        when answer is null then 'conversations has no answer of the assistant to learn from after its first message'
    end as message
from turned

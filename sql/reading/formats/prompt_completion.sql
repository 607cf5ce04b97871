-- name: interactions
-- Interactions of records with prompt and completion.
with parsed as (
    select
        object,
        row,
        record_digest(raw) as digest,
        raw,
        json_transform(raw, '{
            "id": "VARCHAR", "session_id": "VARCHAR", "timestamp": "VARCHAR", "workload_id": "VARCHAR",
            "model": "VARCHAR", "system": "VARCHAR", "prompt": "JSON", "question": "JSON", "completion": "JSON",
            "response": "JSON", "answer": "JSON", "tools": "JSON"
        }') as record
    from records
),
answered as (
    select
        *,
        case
            when record.prompt is not null then coalesce(record.completion, record.response)
            else coalesce(record.answer, record.response)
        end as answer_json,
        -- a prompt alone keeps its other keys for a grader
        case when answer_json is not null then example_prompt(raw) end as told
    from parsed
),
conversations as (
    select
        *,
        case
            when answer_json is not null then openai_messages(told.messages, 'user')
            else list_concat(
                case when record.system <> '' then openai_messages(to_json(record.system), 'system') else [] end,
                openai_messages(coalesce(record.prompt, record.question), 'user')
            )
        end as asked,
        list_concat(asked, openai_messages(answer_json, 'assistant')) as conversation
    from answered
)
select
    object,
    row,
    0 as part,
    'prompt_completion' as format,
    digest as record_digest, record.id as request_id, record.id as trace_id,
    0 as choice_index,
    record.timestamp as written_ts,
    record.workload_id as workload_name,
    coalesce(record.session_id, record.id || ':' || digest[:16]) as session_id,
    record.model as model,
    to_json(case when answer_json is null then conversation else conversation[:-2] end) as messages,
    openai_tools(record.tools) as tools,
    case when answer_json is null then json_merge_patch('{}', to_json(struct_pack("item" := json_merge_patch(raw, '{
        "id": null, "session_id": null, "timestamp": null, "workload_id": null, "model": null, "system": null,
        "prompt": null, "question": null, "tools": null
    }')))) end as params,
    case when answer_json is not null then conversation[-1] end as completion,
    case when answer_json is not null then 'stop' end as finish_reason,
    case when answer_json is null then 'prompt' else 'success' end as status,
    case
        when told.problem is not null then 'wrong_type'
        when len(asked) = 0 then 'missing_field'
        when answer_json is not null and coalesce(conversation[-1] ->> '$.role', '') <> 'assistant' then 'missing_field'
    end as error_code,
    case
        when told.problem is not null then told.problem
        when len(asked) = 0
            then 'prompt is neither a text nor a list of messages'
        when answer_json is not null and coalesce(conversation[-1] ->> '$.role', '') <> 'assistant'
            then 'the completion is neither a text nor a list of messages that ends with the assistant''s'
    end as message
from conversations

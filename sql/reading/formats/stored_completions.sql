-- name: interactions
-- Interactions of stored OpenAI completions and responses.
with pages as (
    select
        object, row, case
            when json_type(raw, '$.data') = 'ARRAY' then json_extract(raw, '$.data[*]')
            else [cast(raw as json)]
        end as listed
    from records
),
completions as (
    select
        object,
        row,
        unnest(case when len(listed) > 0 then listed else [null] end) as raw_completion,
        len(listed) as on_page
    from pages
),
parsed as (
    select
        *,
        json_transform(raw_completion, '{
            "id": "VARCHAR", "object": "VARCHAR", "role": "VARCHAR", "created": "VARCHAR", "model": "VARCHAR",
            "system_fingerprint": "VARCHAR",
            "metadata": {"session_id": "VARCHAR", "conversation_id": "VARCHAR", "trace_id": "VARCHAR",
                         "workload_id": "VARCHAR", "workload": "VARCHAR", "client_id": "VARCHAR",
                         "user_id": "VARCHAR", "served_model_digest": "VARCHAR"},
            "messages": "JSON", "input": "JSON", "request": {"messages": "JSON", "tools": "JSON"},
            "tools": "JSON", "functions": "JSON", "user": "VARCHAR", "input_user": "VARCHAR", "prompt_token_ids": ["INTEGER"],
            "temperature": "JSON", "top_p": "JSON", "max_tokens": "JSON", "max_completion_tokens": "JSON",
            "seed": "JSON", "stop": "JSON", "tool_choice": "JSON", "response_format": "JSON",
            "presence_penalty": "JSON", "frequency_penalty": "JSON", "reasoning_effort": "JSON",
            "chat_template_kwargs": "JSON", "documents": "JSON", "continue_final_message": "JSON",
            "choices": [{"index": "INTEGER", "finish_reason": "VARCHAR", "message": "JSON", "token_ids": ["INTEGER"]}],
            "usage": {"prompt_tokens": "BIGINT", "completion_tokens": "BIGINT",
                      "prompt_tokens_details": {"cached_tokens": "BIGINT"},
                      "completion_tokens_details": {"reasoning_tokens": "BIGINT"}}
        }') as record
    from completions
),
choices as (
    select
        *,
        coalesce(record.messages, record.request.messages, record.input) as request_messages,
        unnest(case when len(record.choices) > 0 then record.choices else [null] end) as choice,
        unnest(range(greatest(coalesce(len(record.choices), 0), 1))) as place
    from parsed
)
select
    object,
    row,
    row_number() over (partition by object, row order by record.created, record.id, place) - 1 as part,
    'stored_completions' as format,
    record.id as request_id,
    record.metadata.trace_id as trace_id,
    choice_number(record.choices, place) as choice_index,
    record.created as written_ts,
    coalesce(record.metadata.workload_id, record.metadata.workload) as workload_name,
    record.metadata.client_id as client,
    coalesce(record.metadata.session_id, record.metadata.conversation_id) as session_id,
    coalesce(record.metadata.user_id, record.user, record.input_user) as user_id,
    record.model as model,
    coalesce(record.metadata.served_model_digest, served_digest(record.system_fingerprint)) as served_model_digest,
    request_messages as messages,
    openai_tools(coalesce(record.tools, record.request.tools, record.functions)) as tools,
    json_merge_patch('{}', to_json(struct_pack(
        temperature := record.temperature, top_p := record.top_p, max_tokens := record.max_tokens,
        max_completion_tokens := record.max_completion_tokens, seed := record.seed, stop := record.stop,
        tool_choice := record.tool_choice, response_format := record.response_format,
        presence_penalty := record.presence_penalty, frequency_penalty := record.frequency_penalty,
        reasoning_effort := record.reasoning_effort, chat_template_kwargs := record.chat_template_kwargs,
        documents := record.documents, continue_final_message := record.continue_final_message
    ))) as params,
    choice.message as completion,
    coalesce(choice.message ->> '$.reasoning_content', choice.message ->> '$.reasoning') as reasoning,
    record.prompt_token_ids as prompt_token_ids, choice.token_ids as completion_token_ids,
    choice.finish_reason as finish_reason, record.usage.prompt_tokens as prompt_tokens,
    record.usage.completion_tokens as completion_tokens, record.usage.prompt_tokens_details.cached_tokens as cached_tokens,
    record.usage.completion_tokens_details.reasoning_tokens as reasoning_tokens,
    'success' as status,
    case
        when request_messages is null or choice is null or json_type(request_messages) <> 'ARRAY' then 'missing_field'
    end as error_code,
    case
        when on_page = 0 then 'the page lists no completions'
        when record.choices is null and record.role is not null
            then 'this is a message of a stored completion; write it into its completion, in a list `messages`'
        when choice is null then 'the stored completion has no choices'
        when request_messages is null or json_type(request_messages) <> 'ARRAY' then 'the stored completion does not hold its messages: get them with '
            || 'GET /chat/completions/{id}/messages and put them beside it as `messages`'
    end as message
from choices

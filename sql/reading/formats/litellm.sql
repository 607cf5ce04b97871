-- name: interactions
-- Interactions of LiteLLM's standard logging payload.
with parsed as (
    select
        object,
        row,
        json_transform(raw, '{
            "call_type": "VARCHAR", "id": "VARCHAR", "trace_id": "VARCHAR", "startTime": "VARCHAR", "endTime": "VARCHAR",
            "completionStartTime": "VARCHAR", "response_time": "DOUBLE", "response_cost": "DOUBLE", "stream": "BOOLEAN",
            "status": "VARCHAR", "error_str": "VARCHAR", "model": "VARCHAR", "model_group": "VARCHAR",
            "custom_llm_provider": "VARCHAR", "cache_hit": "BOOLEAN", "end_user": "VARCHAR",
            "prompt_tokens": "BIGINT", "completion_tokens": "BIGINT", "messages": "JSON", "model_parameters": "JSON",
            "metadata": {"user_api_key_alias": "VARCHAR", "user_api_key_team_alias": "VARCHAR",
                         "user_api_key_user_id": "VARCHAR",
                         "spend_logs_metadata": {"workload_id": "VARCHAR", "workload": "VARCHAR",
                                                 "session_id": "VARCHAR", "served_model_digest": "VARCHAR"},
                         "requester_metadata": {"workload_id": "VARCHAR", "session_id": "VARCHAR",
                                                "conversation_id": "VARCHAR"}},
            "error_information": {"error_message": "VARCHAR", "error_class": "VARCHAR"},
            "response": "JSON"
        }') as record
    from records
),
responses as (
    select
        *,
        json_transform(record.response, '{
            "id": "VARCHAR", "system_fingerprint": "VARCHAR", "prompt_token_ids": ["INTEGER"],
            "choices": [{"index": "INTEGER", "finish_reason": "VARCHAR", "message": "JSON", "text": "VARCHAR",
                         "token_ids": ["INTEGER"]}],
            "usage": {"prompt_tokens_details": {"cached_tokens": "BIGINT"},
                      "completion_tokens_details": {"reasoning_tokens": "BIGINT"},
                      "input_tokens_details": {"cached_tokens": "BIGINT"},
                      "output_tokens_details": {"reasoning_tokens": "BIGINT"}}
        }') as response,
        coalesce(record.status, 'success') = 'failure' as failed,
        case json_type(record.messages)
            when 'VARCHAR' then to_json([struct_pack("role" := 'user', "content" := record.messages ->> '$')])
            when 'OBJECT' then to_json([record.messages])
            when 'ARRAY' then record.messages
        end as request_messages
    from parsed
),
-- OpenAI's Responses API has items instead of messages; other APIs (/v1/messages, generateContent, pass-through routes) have
-- blocks or parts
chats as (
    select
        *,
        json_transform(case
            when record.call_type in ('responses', 'aresponses') then chat_of(cast(json_object(
                'input', record.messages, 'response', record.response,
                'instructions', json_extract(record.model_parameters, '$.instructions')
            ) as varchar))
            when regexp_matches(record.call_type, 'anthropic_messages|generate_content|pass_?through')
                or regexp_matches(
                    cast(record.messages as varchar), '"type":"(tool_use|tool_result|thinking|redacted_thinking)"|"parts":\['
                )
                then provider_chat_of(cast(json_object(
                    'call_type', record.call_type, 'messages', record.messages, 'response', record.response,
                    'parameters', record.model_parameters
                ) as varchar))
        end, '{
            "messages": "JSON", "message": "JSON", "finish_reason": "VARCHAR", "tools": "JSON", "params": "JSON",
            "code": "VARCHAR", "words": "VARCHAR", "usage": {"cached": "BIGINT", "reasoning": "BIGINT"},
            "choices": [{"index": "INTEGER", "finish_reason": "VARCHAR", "message": "JSON", "text": "VARCHAR",
                         "token_ids": ["INTEGER"]}]
        }') as chat
    from responses
),
shaped as (
    select * replace (struct_update(response, choices := coalesce(nullif(chat.choices, []), response.choices)) as response)
    from chats
),
-- Calls other than chat (embeddings, images, files, ...) have no choices, whatever their call_type
kinds as (
    select
        *,
        coalesce(len(response.choices), 0) = 0 and not regexp_full_match(
            record.call_type, 'a?(text_)?completion|a?responses|anthropic_messages|a?generate_content(_stream)?'
        ) and not (chat.messages is not null and failed) as other_kind,
        unnest(range(greatest(coalesce(len(response.choices), 0), 1))) as part
    from shaped
),
chosen as (
    select
        *,
        response.choices[part + 1] as choice,
        record.metadata.spend_logs_metadata as spend,
        record.metadata.requester_metadata as requester,
        moment(record.startTime) as begun,
        moment(record.endTime) as ended,
        moment(record.completionStartTime) as spoke
    from kinds
),
answered as (
    select
        *,
        case
            when choice.message is not null then choice.message
            when choice.text is not null then to_json(struct_pack("role" := 'assistant', "content" := choice.text))
            when chat.message is not null then chat.message
            when json_type(record.response) = 'VARCHAR' and (record.response ->> '$') <> ''
                then to_json(struct_pack("role" := 'assistant', "content" := record.response ->> '$'))
        end as answer,
        case
            when chat.messages is not null then chat.messages
            when request_messages is null and failed then '[]'
            else request_messages
        end as conversation
    from chosen
)
select
    object, row, part,
    'litellm' as format,
    coalesce(response.id, record.id) as request_id,
    record.id as alias_id,
    coalesce(record.trace_id, record.id) as trace_id,
    choice_number(response.choices, part) as choice_index,
    logged_time(record.startTime, record.endTime) as written_ts,
    coalesce(spend.workload_id, spend.workload, requester.workload_id, record.metadata.user_api_key_team_alias,
             record.metadata.user_api_key_alias) as workload_name,
    record.metadata.user_api_key_alias as client,
    coalesce(requester.session_id, requester.conversation_id, spend.session_id, record.trace_id) as session_id,
    coalesce(nullif(record.end_user, ''), record.metadata.user_api_key_user_id) as user_id,
    coalesce(record.model, record.model_group) as model,
    record.custom_llm_provider as provider,
    coalesce(spend.served_model_digest, served_digest(response.system_fingerprint)) as served_model_digest,
    conversation as messages,
    coalesce(chat.tools, openai_tools(coalesce(record.model_parameters -> '$.tools', record.model_parameters -> '$.functions'))) as tools,
    coalesce(chat.params, record.model_parameters) as params,
    answer as completion,
    coalesce(answer ->> '$.reasoning_content', answer ->> '$.reasoning') as reasoning,
    response.prompt_token_ids as prompt_token_ids,
    choice.token_ids as completion_token_ids,
    coalesce(choice.finish_reason, chat.finish_reason) as finish_reason,
    case when failed then coalesce(record.error_str, record.error_information.error_message,
                                   record.error_information.error_class, 'failure') end as error,
    record.cache_hit as cache_hit, record.prompt_tokens as prompt_tokens, record.completion_tokens as completion_tokens,
    coalesce(response.usage.prompt_tokens_details.cached_tokens, response.usage.input_tokens_details.cached_tokens,
             chat.usage.cached) as cached_tokens,
    coalesce(response.usage.completion_tokens_details.reasoning_tokens,
             response.usage.output_tokens_details.reasoning_tokens, chat.usage.reasoning) as reasoning_tokens,
    -- for a stream, response_time is the time to the first token
    coalesce(
        (epoch_us(ended) - epoch_us(begun)) / 1e3, case when not coalesce(record.stream, false) then record.response_time * 1000 end
    ) as latency_ms,
    (epoch_us(spoke) - epoch_us(begun)) / 1e3 as ttft_ms,
    record.response_cost as cost,
    case when failed then 'failure' else 'success' end as status,
    case
        when other_kind then 'skipped'
        when chat.code is not null then chat.code
        when conversation is null or record.call_type is null then 'missing_field'
        when answer is null and not failed then 'missing_field'
    end as error_code,
    case
        when other_kind then concat('litellm_', regexp_extract(lower(record.call_type), '^_?([a-z_]{1,40})$', 1))
        when chat.code is not null then chat.words
        when conversation is null then 'messages is missing'
        when record.call_type is null then 'call_type is missing'
        when answer is null and not failed and coalesce(json_type(record.response), 'NULL') = 'NULL'
            then 'the response is null: LiteLLM was told to log prompts only'
        when answer is null and not failed then 'the response holds no answer'
    end as message
from answered

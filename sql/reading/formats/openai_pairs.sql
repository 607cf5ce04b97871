-- name: interactions
-- Interactions of records with an OpenAI request and response; one row per choice.
with parsed as (
    select
        object, row, raw,
        json_transform(raw, '{
            "timestamp": "VARCHAR", "ts": "VARCHAR", "created_at": "VARCHAR",
            "workload_id": "VARCHAR", "workload": "VARCHAR", "client_id": "VARCHAR", "client": "VARCHAR",
            "session_id": "VARCHAR", "trace_id": "VARCHAR", "request_id": "VARCHAR", "user_id": "VARCHAR",
            "user_hash": "VARCHAR", "sampling": "JSON",
            "provider": "VARCHAR", "served_model_digest": "VARCHAR", "release": "VARCHAR", "cache_hit": "BOOLEAN",
            "latency_ms": "DOUBLE", "ttft_ms": "DOUBLE", "cost": "DOUBLE", "error": "JSON",
            "request": {
                "model": "VARCHAR", "messages": "JSON", "tools": "JSON", "functions": "JSON", "user": "VARCHAR",
                "safety_identifier": "VARCHAR",
                "metadata": {"session_id": "VARCHAR", "conversation_id": "VARCHAR", "trace_id": "VARCHAR",
                             "workload_id": "VARCHAR", "served_model_digest": "VARCHAR"},
                "temperature": "JSON", "top_p": "JSON", "top_k": "JSON", "min_p": "JSON", "max_tokens": "JSON",
                "max_completion_tokens": "JSON", "seed": "JSON", "stop": "JSON", "n": "JSON", "stream": "JSON",
                "tool_choice": "JSON", "parallel_tool_calls": "JSON", "response_format": "JSON",
                "presence_penalty": "JSON", "frequency_penalty": "JSON", "repetition_penalty": "JSON", "reasoning_effort": "JSON",
                "chat_template_kwargs": "JSON", "documents": "JSON", "continue_final_message": "JSON",
                "logit_bias": "JSON"
            },
            "response": {
                "id": "VARCHAR", "created": "VARCHAR", "created_at": "VARCHAR", "model": "VARCHAR", "provider": "VARCHAR", "error": "JSON",
                "type": "VARCHAR", "system_fingerprint": "VARCHAR", "metadata": {"weight_version": "VARCHAR"},
                "prompt_token_ids": ["INTEGER"],
                "choices": [{"index": "INTEGER", "finish_reason": "VARCHAR", "message": "JSON",
                             "token_ids": ["INTEGER"]}],
                "usage": {"prompt_tokens": "BIGINT", "completion_tokens": "BIGINT",
                          "prompt_tokens_details": {"cached_tokens": "BIGINT"},
                          "completion_tokens_details": {"reasoning_tokens": "BIGINT"}},
                "metrics": {"time_to_first_token_ms": "DOUBLE", "queue_time_ms": "DOUBLE",
                            "speculative_decoding": {"num_spec_steps": "BIGINT", "num_draft_tokens": "BIGINT",
                                                     "num_accepted_draft_tokens": "BIGINT"}}
            }
        }') as record
    from records
),
-- OpenAI's Responses API has items instead of messages
shaped as (
    select
        *,
        case when record.request.messages is null
            and (json_type(raw, '$.response.output') = 'ARRAY' or json_type(raw, '$.request.input') <> 'NULL') then json_transform(
            chat_of(cast(json_object(
                'input', json_extract(raw, '$.request.input'), 'instructions', json_extract(raw, '$.request.instructions'),
                'response', json_extract(raw, '$.response')
            ) as varchar)),
            '{"messages": "JSON", "message": "JSON", "finish_reason": "VARCHAR", "usage": {"input_tokens": "BIGINT",
              "output_tokens": "BIGINT", "cached_tokens": "BIGINT", "reasoning_tokens": "BIGINT"}}'
        ) end as chat
    from parsed
),
choices as (
    select
        object, row, raw, record, chat, record.request as request, record.response as response,
        coalesce(error_text(record.response.error), error_text(record.error)) as failure,
        unnest(range(greatest(coalesce(len(record.response.choices), 0), 1))) as part
    from shaped
),
-- What a record lacks: one case, so that only incomplete records are searched again
chosen as (
    select
        *,
        response.choices[part + 1] as choice,
        case
            when request.messages is null and chat.messages is null then
                case
                    when coalesce(json_type(raw, '$.request'), 'OBJECT') = 'OBJECT' then struct_pack(
                        code := 'missing_field',
                        words := if(chat is null, 'request.messages is missing', 'request.input has no message')
                    )
                    else struct_pack(code := 'wrong_type', words := 'request is not an object')
                end
            when response.type = 'error' then struct_pack(code := 'wrong_type', words := 'the error is Anthropic''s')
            when failure is null and response.choices[part + 1] is null and chat.message is null then
                case
                    when coalesce(json_type(raw, '$.response'), 'OBJECT') = 'OBJECT'
                        then struct_pack(
                            code := 'missing_field',
                            words := concat('response has neither ', if(chat is null, 'choices', 'output'), ' nor an error')
                        )
                    else struct_pack(code := 'wrong_type', words := 'response is not an object')
                end
        end as problem
    from choices
)
select
    object, row, part,
    'openai_pairs' as format,
    coalesce(response.id, record.request_id) as request_id,
    record.request_id as alias_id,
    coalesce(record.trace_id, request.metadata.trace_id, record.request_id) as trace_id,
    choice_number(response.choices, part) as choice_index,
    logged_time(record.timestamp, record.ts, record.created_at, response.created, response.created_at) as written_ts,
    coalesce(record.workload_id, record.workload, request.metadata.workload_id) as workload_name,
    coalesce(record.client_id, record.client) as client,
    coalesce(record.session_id, request.metadata.session_id, request.metadata.conversation_id) as session_id,
    coalesce(record.user_id, request.user, request.safety_identifier) as user_id,
    case when regexp_full_match(record.user_hash, '[0-9a-f]{64}') then record.user_hash end as user_hash,
    coalesce(response.model, request.model) as model,
    coalesce(record.provider, response.provider) as provider,
    coalesce(record.served_model_digest, request.metadata.served_model_digest, served_digest(response.system_fingerprint),
             served_digest(response.metadata.weight_version)) as served_model_digest,
    coalesce(request.messages, chat.messages) as messages,
    openai_tools(coalesce(request.tools, request.functions)) as tools,
    -- what the server applied where the request said nothing, under what the request said
    json_merge_patch(case when json_type(record.sampling) = 'OBJECT' then record.sampling else '{}' end, json_merge_patch('{}', to_json(struct_pack(
        temperature := request.temperature, top_p := request.top_p, top_k := request.top_k, min_p := request.min_p,
        max_tokens := request.max_tokens, max_completion_tokens := request.max_completion_tokens,
        seed := request.seed, stop := request.stop, n := request.n, stream := request.stream,
        tool_choice := request.tool_choice, parallel_tool_calls := request.parallel_tool_calls,
        response_format := request.response_format, presence_penalty := request.presence_penalty,
        frequency_penalty := request.frequency_penalty, reasoning_effort := request.reasoning_effort,
        chat_template_kwargs := request.chat_template_kwargs, documents := request.documents,
        continue_final_message := request.continue_final_message,
        repetition_penalty := request.repetition_penalty,
        logit_bias := request.logit_bias
    )))) as params,
    coalesce(choice.message, chat.message) as completion,
    coalesce(choice.message ->> '$.reasoning_content', choice.message ->> '$.reasoning') as reasoning,
    response.prompt_token_ids as prompt_token_ids,
    choice.token_ids as completion_token_ids,
    coalesce(choice.finish_reason, chat.finish_reason) as finish_reason,
    failure as error,
    record.cache_hit as cache_hit,
    coalesce(response.usage.prompt_tokens, chat.usage.input_tokens) as prompt_tokens,
    coalesce(response.usage.completion_tokens, chat.usage.output_tokens) as completion_tokens,
    coalesce(response.usage.prompt_tokens_details.cached_tokens, chat.usage.cached_tokens) as cached_tokens,
    coalesce(response.usage.completion_tokens_details.reasoning_tokens, chat.usage.reasoning_tokens)
        as reasoning_tokens,
    record.latency_ms as latency_ms,
    coalesce(record.ttft_ms, response.metrics.time_to_first_token_ms) as ttft_ms,
    record.cost as cost,
    case when failure is null then 'success' else 'failure' end as status,
    coalesce(record.release, served_release(response.system_fingerprint), served_release(response.metadata.weight_version))
        as release,
    response.metrics.queue_time_ms as queue_ms, response.metrics.speculative_decoding.num_spec_steps as drafts,
    response.metrics.speculative_decoding.num_draft_tokens as draft_tokens,
    response.metrics.speculative_decoding.num_accepted_draft_tokens as accepted_tokens, problem.code as error_code,
    problem.words as message
from chosen

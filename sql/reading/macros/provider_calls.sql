-- Interactions of calls of another API than OpenAI's (wanted: anthropic, gemini, bedrock, ollama, completions, langsmith); one row
-- per answer. A prompt that a template rendered is split into messages.
-- needs: call_of(), choice_number(), error_text(), records, templated_messages(), transcript_messages()
-- makes: macro provider_calls(wanted) as rows (object, row, part, format, request_id, alias_id, trace_id, choice_index, written_ts,
--     workload_name, client, session_id, user_id, user_hash, model, provider, served_model_digest, messages, tools, params, completion,
--     finish_reason, error, cache_hit, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, latency_ms, ttft_ms,
--     cost, status, error_code, message)
create or replace temp macro provider_calls(wanted) as table
with calls as (
    select
        object,
        row,
        json_transform(call_of(raw, wanted), '{
            "code": "VARCHAR", "words": "VARCHAR", "skipped": "VARCHAR",
            "request_id": "VARCHAR", "alias_id": "VARCHAR", "trace_id": "VARCHAR", "written_ts": "VARCHAR",
            "workload": "VARCHAR", "client": "VARCHAR", "session_id": "VARCHAR", "user_id": "VARCHAR", "user_hash": "VARCHAR",
            "model": "VARCHAR", "provider": "VARCHAR", "served_model_digest": "VARCHAR",
            "messages": "JSON", "prompt": "VARCHAR", "tools": "JSON", "params": "JSON",
            "choices": [{"index": "INTEGER", "message": "JSON", "finish_reason": "VARCHAR"}], "finish_reason": "VARCHAR",
            "usage": {"prompt": "BIGINT", "completion": "BIGINT", "cached": "BIGINT", "reasoning": "BIGINT"},
            "error": "JSON", "logged_error": "JSON", "cache_hit": "BOOLEAN", "latency_ms": "DOUBLE", "ttft_ms": "DOUBLE",
            "cost": "DOUBLE"
        }') as call
    from records
),

choices as (
    select
        object,
        row,
        call,
        coalesce(error_text(call.error), error_text(call.logged_error)) as failure,
        case
            when call.prompt is null or call.messages is not null then call.messages
            else coalesce(
                to_json(templated_messages(call.prompt)),
                case when starts_with(ltrim(call.prompt), 'Human:') then to_json(list_filter(
                    transcript_messages(call.prompt),
                    lambda turn: (turn ->> '$.role') <> 'assistant' or (turn ->> '$.content') <> ''
                )) end,
                to_json([struct_pack("role" := 'user', "content" := call.prompt)])
            )
        end as messages,
        unnest(range(greatest(coalesce(len(call.choices), 0), 1))) as part
    from calls
)

select
    object,
    row,
    part,
    wanted as format,
    call.request_id as request_id,
    call.alias_id as alias_id,
    call.trace_id as trace_id,
    choice_number(call.choices, part) as choice_index,
    call.written_ts as written_ts,
    call.workload as workload_name,
    call.client as client,
    call.session_id as session_id,
    call.user_id as user_id,
    case when regexp_full_match(call.user_hash, '[0-9a-f]{64}') then call.user_hash end as user_hash,
    call.model as model,
    call.provider as provider,
    call.served_model_digest as served_model_digest,
    messages,
    call.tools as tools,
    call.params as params,
    call.choices[part + 1].message as completion,
    coalesce(call.choices[part + 1].finish_reason, call.finish_reason) as finish_reason,
    failure as error,
    call.cache_hit as cache_hit,
    call.usage.prompt as prompt_tokens,
    call.usage.completion as completion_tokens,
    call.usage.cached as cached_tokens,
    call.usage.reasoning as reasoning_tokens,
    call.latency_ms as latency_ms,
    call.ttft_ms as ttft_ms,
    call.cost as cost,
    case when failure is null then 'success' else 'failure' end as status,
    case
        when call.skipped is not null then 'skipped'
        when call.code is not null then call.code
        when messages is null then 'missing_field'
        when failure is null and call.choices[part + 1].message is null then 'missing_field'
    end as error_code,
    case
        when call.skipped is not null then call.skipped
        when call.code is not null then call.words
        when messages is null then 'the request has no messages'
        when failure is null and call.choices[part + 1].message is null then 'the response has neither an answer nor an error'
    end as message
from choices

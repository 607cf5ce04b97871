-- Interactions of calls of Anthropic's Messages API.
-- needs: provider_calls()
-- makes: rows (object, row, part, format, request_id, alias_id, trace_id, choice_index, written_ts, workload_name, client,
--     session_id, user_id, model, provider, served_model_digest, messages, tools, params, completion, finish_reason, error,
--     cache_hit, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, latency_ms, ttft_ms, cost, status,
--     error_code, message)
select * from provider_calls('anthropic')

-- Interactions of one batch, before repeated and erased rows are removed. A row with error_code moves to `quarantined` when its
-- part of the batch is complete.
-- makes: temp table staged (object, row, part, error_code, message, workload, dt, interaction_id, request_id, alias_id,
--     trace_id, choice_index, ts, source, source_format, source_uri, source_row, client, session_id, user_hash, model,
--     provider, served_model_digest, messages, tools, params, completion, reasoning, prompt_token_ids, completion_token_ids,
--     finish_reason, error, cache_hit, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, latency_ms,
--     ttft_ms, cost, status, content_sha256, workload_name, release, queue_ms, drafts, draft_tokens, accepted_tokens)
create or replace temp table staged (
    object integer, row bigint, part integer, error_code varchar, message varchar,
    workload varchar, dt date, interaction_id varchar, request_id varchar, alias_id varchar, trace_id varchar, choice_index integer, ts timestamptz, source varchar, source_format varchar, source_uri varchar,
    source_row bigint, client varchar, session_id varchar, user_hash varchar, model varchar, provider varchar,
    served_model_digest varchar, messages varchar, tools varchar, params varchar, completion varchar,
    reasoning varchar, prompt_token_ids integer[], completion_token_ids integer[], finish_reason varchar,
    error varchar, cache_hit boolean, prompt_tokens bigint, completion_tokens bigint, cached_tokens bigint,
    reasoning_tokens bigint, latency_ms double, ttft_ms double, cost double, status varchar, content_sha256 varchar,
    workload_name varchar, release varchar, queue_ms double, drafts bigint, draft_tokens bigint, accepted_tokens bigint
)

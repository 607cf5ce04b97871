-- The columns that a format's interactions.sql may fill. written_ts: the time as the log has it; part: numbers the rows of one
-- record; user_hash: of a record whose producer hashed the user, with the key of this lake.
-- makes: temp table no_interactions (object, row, part, format, record_digest, request_id, alias_id, trace_id, choice_index,
--     written_ts, workload_name, client, session_id, user_id, user_hash, model, provider, served_model_digest, messages, tools, params,
--     completion, reasoning, prompt_token_ids, completion_token_ids, finish_reason, error, cache_hit, prompt_tokens,
--     completion_tokens, cached_tokens, reasoning_tokens, latency_ms, ttft_ms, cost, status, release, queue_ms,
--     drafts, draft_tokens, accepted_tokens, error_code, message)
create or replace temp table no_interactions (
    object integer, row bigint, part integer, format varchar,
    record_digest varchar, request_id varchar, alias_id varchar, trace_id varchar, choice_index integer, written_ts varchar, workload_name varchar,
    client varchar, session_id varchar, user_id varchar, user_hash varchar, model varchar, provider varchar, served_model_digest varchar,
    messages varchar, tools varchar, params varchar, completion varchar, reasoning varchar,
    prompt_token_ids integer[], completion_token_ids integer[], finish_reason varchar, error varchar,
    cache_hit boolean, prompt_tokens bigint, completion_tokens bigint, cached_tokens bigint, reasoning_tokens bigint,
    latency_ms double, ttft_ms double, cost double, status varchar, release varchar, queue_ms double, drafts bigint,
    draft_tokens bigint, accepted_tokens bigint,
    error_code varchar, message varchar
)

-- The columns that a format's interactions.sql may fill.
create or replace temp table no_interactions (
    object integer, row bigint, part integer, format varchar,
    record_digest varchar, request_id varchar, alias_id varchar, trace_id varchar, choice_index integer, written_ts varchar, workload_name varchar,
    client varchar, session_id varchar, user_id varchar, model varchar, provider varchar, served_model_digest varchar,
    messages varchar, tools varchar, params varchar, completion varchar, reasoning varchar,
    prompt_token_ids integer[], completion_token_ids integer[], finish_reason varchar, error varchar,
    cache_hit boolean, prompt_tokens bigint, completion_tokens bigint, cached_tokens bigint, reasoning_tokens bigint,
    latency_ms double, ttft_ms double, cost double, status varchar,
    error_code varchar, message varchar
)

-- Interactions of one batch, ready for the table but for repetitions and erasures. error_code and message are of rows
-- that failed a check; those leave for `quarantined` as soon as their part of the batch is read.
create or replace temp table staged (
    object integer, row bigint, part integer, error_code varchar, message varchar,
    workload varchar, dt date, interaction_id varchar, request_id varchar, alias_id varchar, trace_id varchar, choice_index integer, ts timestamptz, source varchar, source_format varchar, source_uri varchar,
    source_row bigint, client varchar, session_id varchar, user_hash varchar, model varchar, provider varchar,
    served_model_digest varchar, messages varchar, tools varchar, params varchar, completion varchar,
    reasoning varchar, prompt_token_ids integer[], completion_token_ids integer[], finish_reason varchar,
    error varchar, cache_hit boolean, prompt_tokens bigint, completion_tokens bigint, cached_tokens bigint,
    reasoning_tokens bigint, latency_ms double, ttft_ms double, cost double, status varchar, content_sha256 varchar,
    workload_name varchar
)

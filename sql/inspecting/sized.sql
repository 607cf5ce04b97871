-- Rows with the sizes that are counted. Token counts are the log's (is_logged), else the number of its token ids, else one
-- token per 4 characters of JSON.
-- needs: interactions
-- makes: temp view sized (interaction_id, dt, ts, session_id, source_format, content_sha256, workload_name, client, model,
--     finish_reason, has_failed, cache_hit, is_truncated, is_logged, has_token_ids, tokens_in, tokens_out, characters,
--     latency_ms, ttft_ms)
create or replace temp view sized as
select
    interaction_id, dt, ts, session_id, source_format, content_sha256,
    coalesce(workload_name, '') as workload_name,
    coalesce(client, '') as client,
    coalesce(model, '') as model,
    coalesce(finish_reason, '') as finish_reason,
    coalesce(error, '') <> '' or lower(status) in ('failure', 'failed', 'error', 'timeout', 'cancelled')
        or regexp_full_match(coalesce(status, ''), '[45][0-9][0-9]') as has_failed,
    coalesce(cache_hit, false) as cache_hit,
    coalesce(finish_reason, '') in ('length', 'max_tokens') as is_truncated,
    completion_tokens is not null as is_logged,
    completion_token_ids is not null as has_token_ids,
    coalesce(prompt_tokens, len(prompt_token_ids), (length(messages) + length(coalesce(tools, ''))) // 4) as tokens_in,
    coalesce(completion_tokens, len(completion_token_ids), length(completion) // 4, 0) as tokens_out,
    length(messages) + length(coalesce(tools, '')) + length(coalesce(completion, '')) as characters,
    latency_ms, ttft_ms
from interactions

-- Counts over all rows, exact. Copies are rows whose messages, tools and answer another row has too. A row without a time of its
-- own is at midnight.
select
    count(*) as rows,
    count(distinct content_sha256) as different_rows,
    count(distinct dt) as days,
    min(ts) as first_ts,
    max(ts) as last_ts,
    count(*) filter (has_failed) as failed,
    count(*) filter (cache_hit) as cache_hits,
    count(*) filter (is_truncated) as truncated,
    count(*) filter (is_logged) as logged,
    count(*) filter (has_token_ids) as with_token_ids,
    count(*) filter (ts = date_trunc('day', ts)) as at_midnight,
    coalesce(sum(tokens_in), 0)::bigint as tokens_in,
    coalesce(sum(tokens_out), 0)::bigint as tokens_out,
    coalesce(sum(characters), 0)::bigint as characters,
    quantile_cont(tokens_in, [0.5, 0.9, 0.99]) as tokens_in_at,
    quantile_cont(tokens_out, [0.5, 0.9, 0.99]) as tokens_out_at,
    quantile_cont(latency_ms, [0.5, 0.9, 0.99]) as latency_ms_at,
    quantile_cont(ttft_ms, [0.5, 0.9, 0.99]) as ttft_ms_at
from sized

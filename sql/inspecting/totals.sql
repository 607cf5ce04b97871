-- Exact counts over all rows. Copies are rows with the same messages, tools and answer as another row. A row without a time is
-- at midnight.
-- needs: sized
-- makes: rows (rows, different_rows, days, first_ts, last_ts, failed, cache_hits, truncated, logged, with_token_ids,
--     at_midnight, tokens_in, tokens_out, characters, tokens_in_at, tokens_out_at, latency_ms_at, ttft_ms_at)
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

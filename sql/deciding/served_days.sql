-- Drafts, accepted tokens and speed by day, as servers reported them for a release. Windows that cannot be true are left out.
-- SGLang does not count drafted tokens. Speed is that of the day's busiest windows, and no less than one answer's: the mean over
-- windows would count the time in which a server had little to do as time that decoding takes.
-- needs: serving_metrics
-- parameters: $release, $since
-- makes: rows (day, drafts, accepted_tokens, tokens_per_second)
select
    window_start::date as day, sum(drafts)::bigint as drafts, sum(accepted_tokens)::bigint as accepted_tokens,
    quantile_cont(greatest(tokens_per_second, 1000 / nullif(latency_ms['inter_token_mean'], 0)), 0.95)
        filter (tokens_per_second > 0) as tokens_per_second
from serving_metrics
where release = $release and window_end > window_start and window_start >= $since and drafts > 0
  and accepted_tokens between 0 and coalesce(draft_tokens, accepted_tokens)
group by day
order by day

-- Drafts, accepted tokens and speed by day, as servers reported them for a release. Windows that cannot be true are left out.
-- SGLang does not count drafted tokens.
-- needs: serving_metrics
-- parameters: $release, $since
-- makes: rows (day, drafts, accepted_tokens, tokens_per_second)
select
    window_start::date as day, sum(drafts)::bigint as drafts, sum(accepted_tokens)::bigint as accepted_tokens,
    avg(tokens_per_second) filter (tokens_per_second > 0) as tokens_per_second
from serving_metrics
where release = $release and window_end > window_start and window_start >= $since and drafts > 0
  and accepted_tokens between 0 and coalesce(draft_tokens, accepted_tokens)
group by day
order by day

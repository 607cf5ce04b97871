-- Windows of a release in a span of time, in order.
-- needs: serving_metrics
-- parameters: $release, $since, $until
-- makes: rows (window_start, window_end, drafts, accepted_tokens, requests, errors)
select window_start, window_end, drafts, accepted_tokens, requests, errors
from serving_metrics
where release = $release and window_start >= $since and window_start < $until
order by window_start

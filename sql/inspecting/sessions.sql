-- Session lengths in requests. Where the log has no session id, requests that begin alike are one session.
-- needs: cleaned_interactions
-- makes: rows (sessions, mean, requests_at, longest, single)
with lengths as (
    select session_id, count(*) as requests from cleaned_interactions group by session_id
)
select
    count(*) as sessions, avg(requests) as mean, quantile_cont(requests, [0.5, 0.9, 0.99]) as requests_at,
    max(requests) as longest, count(*) filter (requests = 1) as single
from lengths

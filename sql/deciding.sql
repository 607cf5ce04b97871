-- name: clean_rows_by_day
-- Rows of each day that cleaning kept: those that the grouping pass reads. traffic: without answers of `millrace chat` ($chats).
select dt, count(*) as rows, count(*) filter (source is distinct from $chats) as traffic
from cleaned_interactions where status = 'ok' group by dt

-- name: drift_rows
-- Values of the tests on the traffic of a release, oldest day first. $release empty: before there was a release.
select dt, window_days, test, value, bound, alarm, sessions
from drift
where release = $release and problem is null
qualify row_number() over (partition by dt, window_days, test order by ts desc) = 1
order by dt, test, window_days

-- name: served_days
-- Drafts, accepted tokens and speed by day, as servers reported them for a release. Windows that cannot be true are left out.
-- SGLang does not count drafted tokens. Speed is that of the day's busiest windows, and no less than one answer's: the mean over
-- windows would count the time in which a server had little to do as time that decoding takes.
select
    window_start::date as day, sum(drafts)::bigint as drafts, sum(accepted_tokens)::bigint as accepted_tokens,
    quantile_cont(greatest(tokens_per_second, 1000 / nullif(latency_ms['inter_token_mean'], 0)), 0.95)
        filter (tokens_per_second > 0) as tokens_per_second
from serving_metrics
where release = $release and window_end > window_start and window_start >= $since and drafts > 0
  and accepted_tokens between 0 and coalesce(draft_tokens, accepted_tokens)
group by day
order by day

-- name: daily_tokens
-- Requests and answer tokens of some days of the traffic. A row without a count of tokens counts as the mean of the others.
-- Answers of `millrace chat` ($chats) and pairs of data sets do not count.
select
    count(*) as requests, coalesce(avg(completion_tokens) * count(*), 0.0)::double as answer_tokens
from interactions
where source is distinct from $chats and source_format is distinct from 'preferences'

-- name: decisions
-- A workload's decisions about retraining, oldest first; of a decision that was written twice, the settled row.
select *
from retraining_decisions
qualify row_number() over (partition by decision_id order by settled_ts desc nulls last, run_id desc nulls last) = 1
order by ts, decision_id

-- name: traffic_by_day
-- Requests by day: failed ones, tokens, users, latency, cost as logged. Without answers of `millrace chat` ($chats) and pairs of data sets.
select
    dt,
    count(*) as requests,
    count(*) filter (where status <> 'success') as failed,
    coalesce(sum(prompt_tokens), 0)::bigint as prompt_tokens,
    coalesce(sum(completion_tokens), 0)::bigint as answer_tokens,
    count(distinct user_hash) as users,
    quantile_cont(latency_ms, 0.5) as p50_ms,
    quantile_cont(latency_ms, 0.95) as p95_ms,
    quantile_cont(ttft_ms, 0.5) as ttft_ms,
    sum(cost) as cost
from interactions
where source is distinct from $chats and source_format is distinct from 'preferences'
group by dt
order by dt

-- name: feedback_by_day
-- Feedback by day, and how much of it is bad.
select dt, count(*) as rated, count(*) filter (where grade < 0) as bad
from graded_feedback
group by dt
order by dt

-- name: judged_by_day
-- Mean points of a judge, by day.
select dt, avg(score) as points, count(*) as judged
from judgements
where name = 'quality' and score is not null
group by dt
order by dt

-- name: served_by_release
-- What servers reported of each release: acceptance length (tokens per forward of the target) and speed.
select
    release,
    sum(drafts)::bigint as drafts,
    1 + sum(accepted_tokens) / nullif(sum(drafts), 0) as acceptance_length,
    avg(tokens_per_second) filter (tokens_per_second > 0) as tokens_per_second,
    min(window_start) as first_seen,
    max(window_end) as last_seen
from serving_metrics
where release is not null and window_end >= window_start
group by release
order by first_seen

-- name: served_by_day
-- What servers reported by day: acceptance length and tokens per second.
select
    cast(window_start as date) as dt,
    1 + sum(accepted_tokens) / nullif(sum(drafts), 0) as acceptance_length,
    avg(tokens_per_second) filter (tokens_per_second > 0) as tokens_per_second
from serving_metrics
where window_end >= window_start
group by dt
order by dt

-- name: drift_by_day
-- The smallest p of each test on each of the newest days that were compared with a release, and whether any window alarmed.
select
    dt,
    test,
    min(p) as p,
    arg_max(value, coalesce(1 - p, value)) as value,
    coalesce(bool_or(alarm), false) as alarm,
    count(value) > 0 as compared
from drift
where release = $release and dt > (select max(dt) from drift where release = $release) - cast($days as integer)
group by dt, test
order by dt, test

-- name: decisions
-- The newest decisions about retraining; of a decision that was written twice, the settled row.
select ts, cause, cause_text, action, why, coalesce(dry_run, false) as dry_run, outcome, cost_s, money, gain
from retraining_decisions
qualify row_number() over (partition by decision_id order by settled_ts desc nulls last, run_id desc nulls last) = 1
order by ts desc
limit cast($count as integer)

-- name: rescored_by_part
-- Answers that were graded again (attached: rescored): old and new mean of the grade and of each part over the answers that
-- have both (over those that have one, where none has both), how many lack the new one (ungraded), and of the grade how many
-- reach $passing now that did not (passes), or no longer do (fails). Each of $parts has a row, also one that never graded.
with named as (
    select unnest(list_concat(map_keys(parts), map_keys(old_parts))) as name
    from rescored
    union
    select unnest($parts)
),
graded as (
    select '(all)' as part, 0 as place, old_grade as old, grade as new from rescored
    union all
    select name, 1, map_extract(old_parts, name)[1], map_extract(parts, name)[1] from rescored, named
)
select
    part,
    count(*) as answers,
    count(*) - count(new) as ungraded,
    round(coalesce(avg(old) filter (where new is not null), avg(old)), 4) as old,
    round(coalesce(avg(new) filter (where old is not null), avg(new)), 4) as new,
    case when place = 0 then count(*) filter (where new >= $passing and old < $passing) end as passes,
    case when place = 0 then count(*) filter (where new < $passing and old >= $passing) end as fails
from graded
group by part, place
order by place, part

-- name: pass_rate_by_difficulty
-- Share of answers that pass, by step and by the pass rate of their prompts when these were first asked (attached: rollouts).
with graded as (
    select row_id, step, cast(grade >= $passing as int) as passed
    from rollouts
    where grade is not null and last
),
first_asked as (
    select row_id, avg(passed) as rate
    from (select * from graded qualify step = min(step) over (partition by row_id))
    group by row_id
)
select
    case when rate < 0.25 then 'hard (at first below 25 %)' when rate < 0.75 then 'medium' else 'easy (at first from 75 %)' end
        as difficulty,
    step + 1 as step,
    avg(passed) as pass_rate
from graded
join first_asked using (row_id)
group by all
order by all

-- name: worst_and_best_rollouts
-- Of the last quarter of the steps five answers with the lowest and five with the highest grade, of different prompts each
-- (attached: rollouts).
with recent as (
    select * from rollouts where grade is not null and last and step >= (select max(step) * 3 // 4 from rollouts)
),
worst as (
    select 'worst' as side, * from recent
    qualify row_number() over (partition by row_id order by grade, step desc, answer) = 1
    order by grade, row_id
    limit 5
),
best as (
    select 'best' as side, * from recent
    qualify row_number() over (partition by row_id order by grade desc, step desc, answer) = 1
    order by grade desc, row_id
    limit 5
)
select side, row_id, step, answer, grade, parts, tokens, ended, text from worst
union all
select side, row_id, step, answer, grade, parts, tokens, ended, text from best

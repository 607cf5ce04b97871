-- name: windows
-- Windows of a release in a span of time, in order.
select window_start, window_end, drafts, accepted_tokens, requests, errors
from serving_metrics
where release = $release and window_start >= $since and window_start < $until
order by window_start

-- name: sessions
-- Sessions of a release in a span of time that are over: without a request for half an hour before the newest one. A share is that
-- of the session's answers. A row that names no release and no weights counts: then the endpoint's champion answered.
-- Answers of `millrace chat` ($chats) do not count: no server gave them.
with opinions as (
    select interaction_id, min(grade) as grade
    from graded_feedback
    where interaction_id is not null
    group by interaction_id
),
answered as (
    select interaction_id, dt
    from interactions
    where ts >= $since and ts < $until and source is distinct from $chats
        and (release = $release or (release is null and coalesce(served_model_digest, $digest) = $digest))
),
read as (
    select
        coalesce(cleaned_interactions.session_id, beginning(null, cleaned_interactions.messages), interaction_id) as session,
        cleaned_interactions.ts,
        cleaned_interactions.status,
        case when length(completion) < 2000 then try_cast(completion as json) ->> '$.content' end as short_answer,
        coalesce(grade < 0, false) as is_disliked
    from cleaned_interactions
    inner join answered using (interaction_id, dt)
    left join opinions using (interaction_id)
),
sessions as (
    select
        max(ts) as last,
        avg((status in ('error', 'empty', 'unreadable'))::int) as failed_answers,
        avg((status in ('truncated', 'broken_tool_call', 'repeated_pattern', 'repetitive'))::int) as broken_answers,
        avg((status in ('refused', 'refused_in_words') or coalesce(refused_in_words(short_answer), false))::int) as refusals,
        avg(is_disliked::int) as bad_feedback
    from read
    group by session
)
select last, failed_answers, broken_answers, refusals, bad_feedback
from sessions
where last <= (select max(last) from sessions) - interval 30 minutes
order by last

-- name: sessions
-- The sessions of a day, numbered from 0.
create or replace temp table sessions as
select session, row_number() over (order by session) - 1 as number
from (select distinct session from traffic)

-- name: categories
-- The categories that a test tells apart: those of the most sessions. All others count as one. Named by a hash, because names are
-- kept when their rows are gone (chosen_window.py), and a name of a prompt shape or tool may be a user's.
with marks as (
    select session, 'prompt_shapes' as test, prompt_shape as category from traffic
    union all
    select session, 'language', language from traffic
    union all
    select session, 'tools', unnest(tools) from traffic
),
counted as (
    select test, category, count(distinct session) as sessions from marks where category is not null group by test, category
)
select test, left(sha256(category), 16) as category
from counted
qualify row_number() over (partition by test order by sessions desc, counted.category) <= $most
order by test, counted.category

-- name: edges
-- Lengths in characters that cut the rows of the vocabulary days in ten parts of about the same size.
select
    list_sort(list_distinct(quantile_disc(prompt_characters, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]))) as prompt_length,
    list_sort(list_distinct(quantile_disc(completion_characters, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])))
        as answer_length
from traffic

-- name: known_texts
-- The last message of each request of the vocabulary days.
select new_text from traffic where new_text is not null

-- name: traffic
-- One row per interaction of the attached days, with what the tests count. A session without an id is told by its first user
-- message; a session that goes on after midnight counts on each of its days. Only feedback of the interaction's own day counts,
-- since later days had less time to get any.
create or replace temp table traffic as
with scored as (
    select interaction_id, content_sha256, arg_max(score, ts) as score
    from judgements
    where name = 'quality' and model = $judge and prompt_sha256 = $prompt_sha256 and score is not null
    group by interaction_id, content_sha256
),
opinions as (
    select dt, interaction_id, min(grade) as grade
    from graded_feedback
    where interaction_id is not null
    group by dt, interaction_id
),
read as (
    select
        dt, interaction_id, content_sha256, session_id, messages, status, prompt_shape, language, prompt_characters,
        completion_characters, try_cast(messages as json) as prompt,
        case when contains(completion, '"tool_calls"') then try_cast(completion as json) end as calling,
        case when length(completion) < 2000 then try_cast(completion as json) ->> '$.content' end as short_answer
    from cleaned_interactions
    where source is distinct from $chats
)
select
    read.dt,
    coalesce(session_id, beginning(null, messages), interaction_id) as session,
    prompt_shape, coalesce(language, 'unknown') as language, prompt_characters, completion_characters,
    coalesce(nullif(list_filter(calling ->> '$.tool_calls[*].function.name', lambda tool: tool is not null), []), ['no tool'])
        as tools,
    case when grade < 0 then 'bad' when grade is not null then 'good' end as opinion,
    status in ('error', 'empty', 'unreadable') as is_error,
    status in ('truncated', 'broken_tool_call', 'repeated_pattern', 'repetitive') as is_broken,
    status in ('refused', 'refused_in_words') or coalesce(refused_in_words(short_answer), false) as is_refused,
    score,
    case json_type(prompt, '$[#-1].content')
        when 'VARCHAR' then prompt ->> '$[#-1].content'
        when 'ARRAY' then array_to_string(prompt ->> '$[#-1].content[*].text', ' ')
    end as new_text
from read
left join scored using (interaction_id, content_sha256)
left join opinions using (dt, interaction_id)

-- name: session_counts
-- What each session of a day counts in each column of the tests. `categories` names the column (place) of each category of each
-- test, hashed as in categories; the category '' is all others. A judge's score of 1 to 10 counts as points and as missing points.
with marks as (
    select session, 'prompt_shapes' as test, prompt_shape as category, 1.0 as amount from traffic
    union all
    select session, 'language', language, 1 from traffic
    union all
    select session, 'tools', unnest(tools), 1 from traffic
    union all
    select session, 'prompt_length', len(list_filter(cast($prompt_edges as bigint[]), lambda edge: edge < prompt_characters))::varchar, 1
    from traffic
    union all
    select
        session, 'answer_length', len(list_filter(cast($answer_edges as bigint[]), lambda edge: edge < completion_characters))::varchar, 1
    from traffic
    union all
    select session, 'errors', if(is_error, 'yes', 'no'), 1 from traffic
    union all
    select session, 'broken_answers', if(is_broken, 'yes', 'no'), 1 from traffic
    union all
    select session, 'refusals', if(is_refused, 'yes', 'no'), 1 from traffic
    union all
    select session, 'feedback_given', if(opinion is null, 'no', 'yes'), 1 from traffic
    union all
    select session, 'bad_feedback', opinion, 1 from traffic where opinion is not null
    union all
    select session, 'quality', 'points', score - 1 from traffic where score is not null
    union all
    select session, 'quality', 'missing points', 10 - score from traffic where score is not null
),
counted as (
    select
        session, test, sum(amount)::double as amount,
        case
            when category is null then ''
            when test in ('prompt_shapes', 'language', 'tools') then left(sha256(category), 16)
            else category
        end as category
    from marks
    group by all
)
select number, coalesce(known.place, other.place) as place, amount
from counted
join sessions using (session)
left join categories as known on known.test = counted.test and known.category = counted.category
left join categories as other on other.test = counted.test and other.category = ''
where coalesce(known.place, other.place) is not null

-- name: new_texts
-- The last message of each request of a day, with the number of its session.
select number, new_text
from traffic
join sessions using (session)
where new_text is not null

-- name: acceptance_compared
-- The days of the chart of acceptance that the table has, as it was last written.
select dt, value, bound, settings from drift where release = $release and test = 'acceptance' order by dt

-- name: captured_hours
-- Drafts and accepted tokens of a release by hour, of captured requests whose server reported them. $release null: of the release
-- that answered last.
with chosen as (
    select coalesce($release, arg_max(release, ts)) as release from interactions where drafts > 0 and source is distinct from $chats
)
select date_trunc('hour', ts) as hour, sum(drafts)::bigint as drafts, sum(accepted_tokens)::bigint as accepted_tokens
from interactions
join chosen on interactions.release is not distinct from chosen.release
where source is distinct from $chats and drafts > 0 and accepted_tokens between 0 and draft_tokens
group by hour
order by hour

-- name: compared
-- Windows that were compared with this reference, settings and code, and the files that they had then.
select dt, window_days, max(files) as files
from drift
where release = $release and settings = $settings and test <> 'acceptance'
  and reference_start = $reference_start and reference_end = $reference_end
group by dt, window_days

-- name: odd_windows
-- Windows of the table serving_metrics that cannot be true: they end before they begin, or accepted more than was drafted.
select
    count(*) filter (window_end <= window_start) as backwards,
    count(*) filter (window_end > window_start and accepted_tokens > draft_tokens) as too_many
from serving_metrics

-- name: recent
-- Rows of the table drift of a release, newest days first, for the page and the plots.
select *
from drift
where release = $release and dt > (select max(dt) from drift where release = $release) - cast($days as integer)
order by dt desc, test, window_days

-- name: served_hours
-- Drafts and accepted tokens of a release by hour of the window's start. $release null: of the release that was served last.
-- A window that ends before it begins (a clock went backwards), or that accepted more than was drafted, is left out, and so is
-- one of more than an hour (nobody read it meanwhile), which belongs to no hour. SGLang does not count drafted tokens.
with chosen as (
    select coalesce($release, arg_max(release, window_end)) as release from serving_metrics
)
select date_trunc('hour', window_start) as hour, sum(drafts)::bigint as drafts, sum(accepted_tokens)::bigint as accepted_tokens
from serving_metrics
join chosen on serving_metrics.release is not distinct from chosen.release
where window_end > window_start and window_end - window_start <= interval 1 hour and drafts > 0
    and accepted_tokens between 0 and coalesce(draft_tokens, accepted_tokens)
group by hour
order by hour

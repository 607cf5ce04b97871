-- One row per interaction of the attached days, with what the tests count. A session without an id is told by its first user
-- message; a session that goes on after midnight counts on each of its days. Only feedback of the interaction's own day counts,
-- since later days had less time to get any. $names, $least: lowest good values of feedback by its name.
-- needs: beginning(), cleaned_interactions, feedback, judgements, refused_in_words()
-- parameters: $judge, $least, $names, $prompt_sha256
-- makes: temp table traffic (dt, interaction_id, content_sha256, session, prompt_shape, language, prompt_characters, completion_characters, tools, opinion,
--     is_error, is_broken, is_refused, score, new_text)
create or replace temp table traffic as
with scored as (
    select interaction_id, content_sha256, arg_max(score, ts) as score
    from judgements
    where name = 'quality' and model = $judge and prompt_sha256 = $prompt_sha256 and score is not null
    group by interaction_id, content_sha256
),
opinions as (
    select
        dt, interaction_id,
        min(value - coalesce(map(cast($names as varchar[]), cast($least as double[]))[name], 0)) as above_the_least
    from feedback
    where interaction_id is not null and value is not null and not isnan(value)
    group by dt, interaction_id
),
read as (
    select
        dt, interaction_id, content_sha256, session_id, messages, status, prompt_shape, language, prompt_characters,
        completion_characters, try_cast(messages as json) as prompt,
        case when contains(completion, '"tool_calls"') then try_cast(completion as json) end as calling,
        case when length(completion) < 2000 then try_cast(completion as json) ->> '$.content' end as short_answer
    from cleaned_interactions
)
select
    read.dt, interaction_id, content_sha256,
    coalesce(session_id, beginning(null, messages), interaction_id) as session,
    prompt_shape, coalesce(language, 'unknown') as language, prompt_characters, completion_characters,
    coalesce(nullif(list_filter(calling ->> '$.tool_calls[*].function.name', lambda tool: tool is not null), []), ['no tool'])
        as tools,
    case when above_the_least < 0 then 'bad' when above_the_least is not null then 'good' end as opinion,
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

-- name: status
-- Drops responses that failed, were cut off, were refused or are empty, and those whose prompt or answer is not what the log says.
-- $whole: finish reasons that leave an answer whole.
create or replace temp table failed_status as
with tested as (
    select
        interaction_id,
        coalesce(try(completion ->> '$.content[*].type'), []) || coalesce(try(completion ->> '$.tool_calls[*].type'), [])
            || if(try(json_type(completion, '$.audio')) = 'OBJECT', ['audio'], []) as kinds,
        case
            when $drop_errors and (
                coalesce(error, '') <> '' or lower(cleaned.status) in ('failure', 'failed', 'error', 'timeout', 'cancelled')
                or regexp_full_match(cleaned.status, '[45][0-9][0-9]')
            ) then 'error'
            when case
                when prompt_messages > 0 then false   -- texts has read it as a list
                else coalesce(try(json_type(messages)), '') <> 'ARRAY'
            end then 'unreadable'
            when cleaned.status = 'prompt' then 'prompt_only'
            when cleaned.status = 'tokens' then null
            when $drop_cache_hits and cache_hit then 'cache_hit'
            when $drop_context_elsewhere and context is not null then 'context_elsewhere'
            when $drop_refused and (
                finish_reason in ('content_filter', 'refusal')
                or (contains(completion, '"refusal"') and coalesce(try(completion ->> '$.refusal'), '') <> '')
            ) then 'refused'
            when $drop_truncated and finish_reason in ('length', 'max_tokens') then 'truncated'
            when $drop_truncated and not list_contains($whole::varchar[], lower(finish_reason)) then 'unfinished'
            when $drop_control_text and cleaned.status is distinct from 'text' and not contains(answer_text, '```') and regexp_matches(
                answer_text, '^\s*(<think>(\n|\S)|<\|\w+\|>|<｜|<\||\[TOOL_CALLS\])|(^|[\n.!:])\s*(<｜tool|<\|tool_call|<\|python_tag\|>|\[TOOL_CALLS\]|<\|channel\|>)'
            ) then 'control_text'
            -- a call in words of the log's model, of which the server made none
            when $drop_control_text and coalesce(tools, '') like '%{%' and (
                not contains(answer_text, '```') and regexp_matches(
                    answer_text, '(^|[\n.!:])\s*(<tool_call>\s*(\{|<function|\w+\s*(\n|<arg_key))|<function=\w|<(minimax:tool_call|function_calls)>\s*<|functools\[\s*\{)'
                )
                or regexp_matches(answer_text, '(^|\n)```tool_code\n')
                or list_contains(
                    coalesce(try_cast(tools as json) ->> '$[*].function.name', []) || coalesce(try_cast(tools as json) ->> '$[*].name', []),
                    regexp_extract(
                        answer_text, '^\s*\[?\s*\{\s*("type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"]+)"\s*,\s*"(parameters|arguments)"\s*:\s*\{', 2
                    )
                )
            ) then 'control_text'
            when $drop_empty and ltrim(coalesce(answer, '')) = '' and len(list_filter(kinds, lambda kind: kind <> 'text')) > 0
                then 'unknown_content'
            when $drop_empty and (
                (coalesce(prompt_messages, 0) = 0 and cleaned.status is distinct from 'text')
                or ltrim(coalesce(answer, '')) = ''
            ) then 'empty'
            when coalesce(try(json_type(completion)), '') <> 'OBJECT' then 'unreadable'
        end as rule,
        case rule
            when 'error' then left(cleaned.status, 40)
            when 'truncated' then finish_reason
            when 'unfinished' then left(finish_reason, 60)
            when 'context_elsewhere' then context
            when 'unknown_content' then left(array_to_string(list_distinct(kinds), ', '), 60)
        end as detail
    from cleaned
    left join texts using (interaction_id)
)
select interaction_id, 1 as place, rule, detail
from tested
where rule is not null

-- name: tools
-- Drops rows with tool calls that no client could have run: a model would learn broken calls from them.
create or replace temp table failed_tools as
with calling as (
    select interaction_id, messages, tools, completion
    from cleaned
    where $drop_broken and (contains(completion, '"tool_calls"') or contains(messages, '"tool"'))
      and try(json_type(completion)) = 'OBJECT' and try(json_type(messages)) = 'ARRAY'
),
calls as (
    select
        interaction_id,
        coalesce(try_cast(tools as json) ->> '$[*].function.name', [])
            || coalesce(try_cast(tools as json) ->> '$[*].name', []) as request_tools,
        unnest(cast(completion -> '$.tool_calls' as json[])) as call
    from calling
    where json_type(completion, '$.tool_calls') = 'ARRAY'
),
bad_calls as (
    select
        interaction_id, call ->> '$.function.name' as name, case
            when coalesce(call ->> '$.type', 'function') <> 'function' then null
            when coalesce(name, '') = '' then 'a call without a name'
            when coalesce(try(json_type(call ->> '$.function.arguments')), '') <> 'OBJECT'
                then 'arguments of ' || left(name, 64) || ' are no JSON object'
            when len(request_tools) > 0 and not list_contains(request_tools, name)
                then left(name, 64) || ' is none of the request''s tools'
        end as detail
    from calls
),
turns as (
    select
        interaction_id,
        unnest(cast(messages as json[])) as message,
        generate_subscripts(cast(messages as json[]), 1) as position
    from calling
    where contains(messages, '"tool"')
),
parsed_turns as (
    select
        interaction_id, position,
        message ->> '$.role' as role,
        message ->> '$.tool_call_id' as answered_id,
        message ->> '$.tool_calls[*].id' as call_ids
    from turns
),
histories as (
    select
        *,
        flatten(list(coalesce(call_ids, [])) over (partition by interaction_id order by position)) as call_ids_so_far,
        lag(role) over (partition by interaction_id order by position) as before,
        lag(call_ids) over (partition by interaction_id order by position) as call_ids_before
    from parsed_turns
),
orphans as (
    select distinct interaction_id, 'a tool''s message answers no call before it' as detail
    from histories
    where role = 'tool' and case
        when answered_id is not null and len(call_ids_so_far) > 0 then not list_contains(call_ids_so_far, answered_id)
        else coalesce(before, '') not in ('assistant', 'tool') or len(call_ids_so_far) = 0 and answered_id is not null
    end
)
select interaction_id, 2 as place, 'broken_tool_call' as rule, min(detail) as detail
from (
    select interaction_id, detail from bad_calls where detail is not null
    union all
    select interaction_id, detail from orphans
)
group by interaction_id

-- name: language
-- Drops answers in a language that is not allowed. Answers whose language is unknown are kept.
create or replace temp table failed_language as
select
    interaction_id, 3 as place, 'language' as rule,
    printf('%s, confidence %.2f', language, language_confidence) as detail
from measured
where len($allow::varchar[]) > 0 and language is not null and not list_contains($allow::varchar[], language)

-- name: repetition
-- Drops answers that loop: one pattern repeated, or Gopher's shares of repeated text.
create or replace temp table failed_repetition as
with passed as (
    select
        interaction_id, repeats, repeats_of,
        repeats >= $repeats * patience as is_loop,   -- arrays, tables, code and logs repeat by nature
        [
            {name: 'duplicate_lines', share: duplicate_lines, most: 0.5},
            {name: 'duplicate_paragraphs', share: duplicate_paragraphs, most: 0.5},
            {name: 'duplicate_line_characters', share: duplicate_line_characters, most: 0.5},
            {name: 'duplicate_paragraph_characters', share: duplicate_paragraph_characters, most: 0.5},
            {name: 'top_2gram', share: top_2gram, most: 0.2},
            {name: 'top_3gram', share: top_3gram, most: 0.18},
            {name: 'top_4gram', share: top_4gram, most: 0.16},
            {name: 'duplicate_5grams', share: duplicate_5grams, most: 0.5},
            {name: 'duplicate_6grams', share: duplicate_6grams, most: 0.5},
            {name: 'duplicate_7grams', share: duplicate_7grams, most: 0.5},
            {name: 'duplicate_8grams', share: duplicate_8grams, most: 0.5},
            {name: 'duplicate_9grams', share: duplicate_9grams, most: 0.5},
            {name: 'duplicate_10grams', share: duplicate_10grams, most: 0.5}
        ] as shares
    from measured
    where repeats >= $repeats or duplicate_lines is not null
),
broken as (
    select
        interaction_id,
        $drop_repeated_patterns and is_loop as is_loop,
        printf('%s %d times in a row', if(repeats_of > 0, repeats_of || ' words', 'the same signs'), repeats) as loop,
        case when $drop_repetitive then list_filter(shares, lambda each: each.share > each.most)[1] end as worst
    from passed
)
select
    interaction_id, 4 as place,
    if(is_loop, 'repeated_pattern', 'repetitive') as rule,
    if(is_loop, loop, printf('%s %.2f, at most %.2f', worst.name, worst.share, worst.most::double)) as detail
from broken
where is_loop or worst is not null

-- name: length
-- Drops rows outside the bounds on length. Token rows have no characters, plain texts no prompt.
create or replace temp table failed_length as
with tested as (
    select
        texts.interaction_id,
        case
            when prompt_characters < $min_prompt and cleaned.status is distinct from 'text' then struct_pack(rule := 'prompt_too_short', value := prompt_characters)
            when prompt_characters > $max_prompt then struct_pack(rule := 'prompt_too_long', value := prompt_characters)
            when completion_characters < $min_answer then struct_pack(rule := 'answer_too_short', value := completion_characters)
            when completion_characters > $max_answer then struct_pack(rule := 'answer_too_long', value := completion_characters)
        end as found
    from texts
    join cleaned using (interaction_id)
    where cleaned.status is distinct from 'tokens'
)
select interaction_id, 5 as place, found.rule, printf('%.6g', found.value::double) as detail
from tested
where found is not null

-- name: refusal
-- Drops short answers that begin with a refusal. Off by default: a refusal may be worth learning.
create or replace temp table failed_refusal as
select interaction_id, 6 as place, 'refused_in_words' as rule, cast(null as varchar) as detail
from texts
where $drop_refused_in_words and refused_in_words(answer)

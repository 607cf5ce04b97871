-- Drops responses that failed, were cut off, were refused or are empty, and those whose prompt or answer is not what the log says.
-- $whole: finish reasons that leave an answer whole.
-- needs: cleaned, texts
-- parameters: $drop_cache_hits, $drop_context_elsewhere, $drop_control_text, $drop_empty, $drop_errors, $drop_refused,
--     $drop_truncated, $whole
-- makes: temp table failed_status (interaction_id, place, rule, detail)
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
                when prompt_messages > 0 then false   -- texts.sql has read it as a list
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

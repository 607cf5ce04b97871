-- name: feedback
-- Feedback of preference records: part 0 is the chosen answer, part 1 the rejected one. None where their scores are no reason to
-- prefer one.
with parsed as (
    select
        object,
        row,
        json_transform(raw, '{"timestamp": "VARCHAR", "workload_id": "VARCHAR"}') as record,
        raw
    from records
)
select
    object,
    row,
    unnest([0, 1]) as part,
    true as extra,
    unnest([0, 1]) as about_part,
    record.workload_id as workload_name,
    'preference' as name,
    unnest(['1', '-1']) as written_value,
    'preferences' as source,
    record.timestamp as written_ts
from parsed
where unpreferred(raw) is null

-- name: interactions
-- Interactions of preference records: the chosen answer is part 0, the rejected one part 1. Of answers with equal scores the rejected
-- one is skipped; where the rejected one has the better score, both are.
with parsed as (
    select
        object,
        row,
        record_digest(raw) as digest,
        example_prompt(raw) as told,
        unpreferred(raw) as unpreferred,
        json_transform(raw, '{
            "id": "VARCHAR", "session_id": "VARCHAR", "timestamp": "VARCHAR", "workload_id": "VARCHAR",
            "model": "VARCHAR", "tools": "JSON", "input": {"tools": "JSON"},
            "preferred_output": "JSON", "non_preferred_output": "JSON",
            "preferred_completion": "JSON", "non_preferred_completion": "JSON",
            "messages": "JSON", "rejected_response": "JSON", "rejected_messages": "JSON", "chosen": "JSON", "rejected": "JSON"
        }') as record
    from records
),
dialects as (
    select
        *,
        openai_messages(told.messages, 'user') as written_prompt,
        coalesce(record.preferred_output, record.preferred_completion, record.chosen, told.edit[2]) as better,
        coalesce(
            record.non_preferred_output, record.non_preferred_completion, record.rejected, record.rejected_response, told.edit[1]
        ) as worse
    from parsed
),
-- ms-swift's messages end with the preferred answer
prompts as (
    select
        object, row, digest, record, unpreferred, told.problem as problem,
        case when better is null and record.messages is not null then written_prompt[:-2] else written_prompt end as prompt,
        case when better is null and record.messages is not null then to_json(written_prompt[-1:]) else better end
            as better,
        case when worse is null and record.rejected_messages is not null then record.rejected_messages else worse end
            as worse
    from dialects
),
sides as (
    select
        *,
        unnest([better, worse]) as answer_json,
        unnest([0, 1]) as part
    from prompts
),
conversations as (
    select
        *,
        case
            when json_type(answer_json) = 'VARCHAR' and len(prompt) = 0 then transcript_messages(answer_json ->> '$')
            -- a list that opens with a user or system message is the whole conversation, prompt and all
            when json_type(answer_json) = 'ARRAY' and coalesce(openai_messages(answer_json, 'assistant')[1] ->> '$.role', '') in (
                'user', 'system', 'developer'
            ) then list_concat(
                list_filter(
                    prompt[:1],
                    lambda message: message ->> '$.role' = 'system'
                        and openai_messages(answer_json, 'assistant')[1] ->> '$.role' not in ('system', 'developer')
                ),
                openai_messages(answer_json, 'assistant')
            )
            else list_concat(prompt, openai_messages(answer_json, 'assistant'))
        end as conversation
    from sides
)
select
    object, row, part,
    'preferences' as format,
    digest as record_digest, record.id as request_id, record.id as trace_id, part as choice_index,
    record.timestamp as written_ts, record.workload_id as workload_name,
    coalesce(record.session_id, record.id || ':' || digest[:16]) as session_id,
    record.model as model,
    to_json(conversation[:-2]) as messages,
    openai_tools(coalesce(record.tools, record.input.tools)) as tools,
    conversation[-1] as completion,
    'stop' as finish_reason,
    'success' as status,
    case
        when problem is not null then 'wrong_type'
        when unpreferred = 'contradictory_scores' or unpreferred = 'equal_scores' and part = 1 then 'skipped'
        when answer_json is null or len(conversation) < 2 then 'missing_field'
        when coalesce(conversation[-1] ->> '$.role', '') <> 'assistant' then 'wrong_type'
    end as error_code,
    case
        when problem is not null then problem
        when unpreferred = 'contradictory_scores' or unpreferred = 'equal_scores' and part = 1 then unpreferred
        when answer_json is null and part = 0 then 'the example has no preferred answer'
        when answer_json is null then 'the example has no rejected answer'
        when len(conversation) < 2 then 'the example has no prompt before its answers'
        when coalesce(conversation[-1] ->> '$.role', '') <> 'assistant' then 'an answer is not the assistant''s'
    end as message
from conversations

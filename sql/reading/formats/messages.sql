-- name: interactions
-- Interactions of records with `messages`: one row per answer in the conversation.
with parsed as (
    select
        object, row, raw,
        record_digest(raw) as digest,
        example_prompt(raw) as told,
        json_transform(raw, '{
            "id": "VARCHAR", "session_id": "VARCHAR", "timestamp": "VARCHAR", "workload_id": "VARCHAR",
            "model": "VARCHAR", "metadata": {"user_id": "VARCHAR"}, "tools": "JSON", "functions": "JSON", "call_type": "JSON", "request": "JSON",
            "messages": ["JSON"]
        }') as record
    from records
),
whole as (
    select *, coalesce(try_cast(told.messages as json[]), record.messages) as spoken
    from parsed
),
answers as (
    select
        *,
        list_filter(
            range(1, coalesce(len(spoken), 0) + 1),
            lambda place: spoken[place] ->> '$.role' = 'assistant'
                and coalesce(spoken[place] ->> '$.weight', '1') not in ('0', '0.0')
        ) as learnt,
        -- input for a grader: every key that the format does not know
        json_merge_patch(raw, '{
            "id": null, "session_id": null, "timestamp": null, "workload_id": null, "model": null, "messages": null,
            "tools": null, "functions": null, "parallel_tool_calls": null, "metadata": null
        }') as item
    from whole
),
-- a conversation that ends with the user is a prompt, unless it has an answer to learn and no input for a grader
requests as (
    select
        *,
        coalesce(
            record.messages[-1] ->> '$.role' = 'user' and (len(learnt) = 0 or cast(item as varchar) <> '{}'), false
        ) as is_prompt,
        case when is_prompt then [] else list_filter(learnt, lambda place: place > 1) end as taught
    from answers
),
turned as (
    select
        *,
        unnest(case when len(taught) > 0 then taught else [null] end) as answer,
        unnest(range(greatest(len(taught), 1))) as part
    from requests
)
select
    object, row, part,
    'messages' as format,
    digest as record_digest,
    record.id || case when len(taught) > 1 then '#' || part else '' end as request_id,
    record.id as trace_id,
    0 as choice_index,
    record.timestamp as written_ts,
    record.workload_id as workload_name,
    coalesce(record.session_id, record.id || ':' || digest[:16], case when len(taught) > 1 then 'conversation:' || digest end)
        as session_id,
    record.metadata.user_id as user_id,
    record.model as model,
    to_json(case when is_prompt then record.messages else spoken[:answer - 1] end) as messages,
    openai_tools(coalesce(record.tools, record.functions)) as tools,
    case when is_prompt and cast(item as varchar) <> '{}' then to_json(struct_pack("item" := item)) end as params,
    spoken[answer] as completion,
    case when not is_prompt then 'stop' end as finish_reason,
    case when is_prompt then 'prompt' else 'success' end as status,
    case
        when record.messages is null then 'wrong_type'
        when record.call_type is not null or record.request is not null then 'wrong_type'
        when not is_prompt and told.problem is not null then 'wrong_type'
        when not is_prompt and answer is null then 'missing_field'
    end as error_code,
    case
        when record.messages is null then 'messages is not a list'
        when record.call_type is not null or record.request is not null then 'the record holds more than messages'
        when not is_prompt and told.problem is not null then told.problem
        when not is_prompt and len(learnt) = 0 then 'messages has no assistant message to learn from'
        when not is_prompt and answer is null then 'messages has nothing before the assistant message'
    end as message
from turned

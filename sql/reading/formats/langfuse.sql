-- name: interactions
-- Interactions of Langfuse observations of type GENERATION.
with parsed as (
    select
        object,
        row,
        json_transform(raw, '{
            "id": "VARCHAR", "trace_id": "VARCHAR", "type": "VARCHAR", "start_time": "VARCHAR", "end_time": "VARCHAR",
            "completion_start_time": "VARCHAR", "created_at": "VARCHAR", "name": "VARCHAR", "level": "VARCHAR",
            "status_message": "VARCHAR", "input": "JSON", "output": "JSON", "provided_model_name": "VARCHAR",
            "model_parameters": "VARCHAR", "usage_details": "MAP(VARCHAR, DOUBLE)", "total_cost": "DOUBLE",
            "cost_details": {"total": "DOUBLE"}, "latency": "DOUBLE", "time_to_first_token": "DOUBLE",
            "user_id": "VARCHAR", "session_id": "VARCHAR", "trace_name": "VARCHAR",
            "tool_calls": ["JSON"], "tool_definitions": "JSON",
            "metadata": {"workload_id": "VARCHAR", "workload": "VARCHAR", "client_id": "VARCHAR",
                         "session_id": "VARCHAR", "served_model_digest": "VARCHAR", "provider": "VARCHAR"}
        }') as record
    from records
),
-- Only for generations: the text, and the JSON list or object in it, if any
texts as (
    select
        *,
        coalesce(record.type, 'TRACE') as kind,
        record.level = 'ERROR' as failed,
        case when record.type = 'GENERATION' then nullif(record.input ->> '$', '') end as request_text,
        case when record.type = 'GENERATION' then nullif(record.output ->> '$', '') end as response_text,
        moment(record.start_time) as start_ts,
        moment(record.end_time) as end_ts,
        moment(record.completion_start_time) as first_ts,
        list_transform(record.tool_calls, lambda each: coalesce(try_cast(each ->> '$' as json), each)) as calls,
        map_entries(record.usage_details) as usage
    from parsed
),
documents as (
    select
        *,
        case when regexp_matches(request_text, '^\s*[\[{]') then try_cast(request_text as json) end as request_json,
        case when regexp_matches(response_text, '^\s*[\[{]') then try_cast(response_text as json) end as response_json
    from texts
),
conversations as (
    select
        *,
        case
            when json_type(request_json) = 'ARRAY' then request_json
            when json_type(request_json, '$.messages') = 'ARRAY' then json_extract(request_json, '$.messages')
            when json_type(request_json, '$.role') = 'VARCHAR' then to_json([request_json])
            when json_type(request_json, '$.input') = 'ARRAY' then json_extract(request_json, '$.input')
            when json_type(request_json, '$.prompt') = 'VARCHAR' or json_type(request_json, '$.input') = 'VARCHAR' then to_json([
                struct_pack("role" := 'user', "content" := coalesce(request_json ->> '$.prompt', request_json ->> '$.input'))
            ])
        end as turns_said,
        request_json ->> '$.instructions' as instructions,
        coalesce(json_extract(request_json, '$.tools'), json_extract(request_json, '$.functions'), case json_type(record.tool_definitions)
            when 'ARRAY' then record.tool_definitions
            when 'OBJECT' then to_json(list_transform(
                json_keys(record.tool_definitions),
                lambda tool: struct_pack("type" := 'function', "function" := json_merge_patch(
                    coalesce(
                        try_cast(json_extract_string(record.tool_definitions, concat('$."', tool, '"')) as json), '{}'
                    ),
                    to_json(struct_pack("name" := tool))
                ))
            ))
        end) as tools_said,
        case
            when json_type(response_json, '$.choices') = 'ARRAY' then json_extract(response_json, '$.choices[*]')
            when json_type(response_json, '$[0].message') = 'OBJECT' then try_cast(response_json as json[])
        end as choices
    from documents
),
messaged as (
    select
        *,
        list_transform(try_cast(turns_said as json[]), lambda each: case
            when json_type(each, '$.role') = 'VARCHAR'
                then json_merge_patch(each, to_json(struct_pack(
                    "role" := coalesce(openai_role(each ->> '$.role'), each ->> '$.role')
                )))
            when openai_role(each ->> '$.type') is not null
                then json_merge_patch(each, to_json(struct_pack("role" := openai_role(each ->> '$.type'), "type" := null)))
        end) as turns,
        unnest(range(greatest(coalesce(len(choices), 0), 1))) as part
    from conversations
),
answered as (
    select
        *,
        choices[part + 1] as choice,
        case
            when request_text is null then null
            when request_json is null then to_json([struct_pack("role" := 'user', "content" := request_text)])
            when turns_said is null then null
            when len(turns) > 0 and len(list_filter(turns, lambda each: each is null)) = 0
                then to_json(case
                    when instructions is null then turns
                    else list_prepend(to_json(struct_pack("role" := 'system', "content" := instructions)), turns)
                end)
            when json_type(request_json) = 'ARRAY' then to_json([struct_pack("role" := 'user', "content" := request_text)])
        end as messages,
        case
            when choices is not null then json_extract(choices[part + 1], '$.message')
            when json_type(response_json, '$.role') = 'VARCHAR' or json_type(response_json, '$.tool_calls') = 'ARRAY'
                or (json_type(response_json, '$.content') in ('VARCHAR', 'ARRAY')) then response_json
            when json_type(response_json) = 'ARRAY' and json_array_length(response_json) = 1 and json_type(response_json, '$[0].role') = 'VARCHAR'
                then json_extract(response_json, '$[0]')
            when response_text is not null then to_json(struct_pack("content" := response_text))
            when len(calls) > 0 then to_json(struct_pack("content" := cast(null as varchar)))
        end as answer
    from messaged
),
with_calls as (
    select
        *,
        case when answer is not null then json_merge_patch(
            to_json(struct_pack("role" := 'assistant', "content" := null)),
            answer,
            to_json(struct_pack("role" := 'assistant')),
            case
                when coalesce(json_array_length(answer, '$.tool_calls'), 0) > 0
                    then json_object('tool_calls', openai_tool_calls(json_extract(answer, '$.tool_calls[*]')))
                when part = 0 and len(calls) > 0 then json_object('tool_calls', openai_tool_calls(calls))
                else '{}'
            end
        ) end as completion
    from answered
)
select
    object, row, part,
    'langfuse' as format,
    record.id as request_id, record.trace_id as trace_id, part as choice_index,
    logged_time(record.start_time, record.created_at) as written_ts,
    coalesce(record.metadata.workload_id, record.metadata.workload, nullif(record.trace_name, '')) as workload_name,
    record.metadata.client_id as client,
    coalesce(nullif(record.session_id, ''), record.metadata.session_id) as session_id,
    record.user_id as user_id,
    nullif(record.provided_model_name, '') as model,
    record.metadata.provider as provider, record.metadata.served_model_digest as served_model_digest, messages,
    openai_tools(tools_said) as tools,
    try_cast(nullif(record.model_parameters, '') as json) as params,
    completion,
    coalesce(completion ->> '$.reasoning_content', completion ->> '$.reasoning') as reasoning,
    coalesce(
        choice ->> '$.finish_reason',
        case when json_array_length(completion, '$.tool_calls') > 0 then 'tool_calls' end
    ) as finish_reason,
    case when failed then coalesce(nullif(record.status_message, ''), 'error') end as error,
    -- details of usage are not included in each other, unless input and output alone make the total
    cast(case
        when record.usage_details['total'] = record.usage_details['input'] + record.usage_details['output']
            then record.usage_details['input']
        else list_sum(list_transform(list_filter(usage, lambda each: starts_with(each.key, 'input')),
                                     lambda each: each.value))
    end as bigint) as prompt_tokens,
    cast(case
        when record.usage_details['total'] = record.usage_details['input'] + record.usage_details['output']
            then record.usage_details['output']
        else list_sum(list_transform(list_filter(usage, lambda each: starts_with(each.key, 'output')),
                                     lambda each: each.value))
    end as bigint) as completion_tokens,
    cast(coalesce(record.usage_details['input_cached_tokens'], record.usage_details['cache_read_input_tokens'],
                  record.usage_details['input_cache_read']) as bigint) as cached_tokens,
    cast(coalesce(record.usage_details['output_reasoning_tokens'], record.usage_details['reasoning_tokens'],
                  record.usage_details['output_reasoning']) as bigint) as reasoning_tokens,
    (epoch_us(end_ts) - epoch_us(start_ts)) / 1e3 as latency_ms,
    coalesce(
        (epoch_us(first_ts) - epoch_us(start_ts)) / 1e3,
        -- seconds or milliseconds, as the row's own latency is
        case
            when record.latency > 0 and end_ts > start_ts then record.time_to_first_token * case
                when abs(ln(record.latency * 1e6 / (epoch_us(end_ts) - epoch_us(start_ts))))
                    < abs(ln(record.latency * 1e3 / (epoch_us(end_ts) - epoch_us(start_ts)))) then 1e3
                else 1
            end
        end
    ) as ttft_ms,
    coalesce(record.total_cost, record.cost_details.total) as cost,
    case when failed then 'failure' else 'success' end as status,
    case
        when kind <> 'GENERATION' then 'skipped'
        when request_text is null then 'missing_field'
        when messages is null then 'wrong_type'
        when completion is null and not coalesce(failed, false) then 'missing_field'
    end as error_code,
    case
        when kind <> 'GENERATION' then concat('langfuse_', lower(kind))
        when request_text is null then 'the generation has no input; export the field group io'
        when messages is null then 'input is JSON, but neither messages nor a prompt'
        when completion is null and not coalesce(failed, false) then 'the generation has no output'
    end as message
from with_calls

with parsed as (
    select
        object,
        row,
        json_transform(raw, '{
            "call_type": "VARCHAR", "id": "VARCHAR", "trace_id": "VARCHAR", "startTime": "VARCHAR", "endTime": "VARCHAR",
            "completionStartTime": "VARCHAR", "response_time": "DOUBLE", "response_cost": "DOUBLE",
            "status": "VARCHAR", "error_str": "VARCHAR", "model": "VARCHAR", "model_group": "VARCHAR",
            "custom_llm_provider": "VARCHAR", "cache_hit": "BOOLEAN", "end_user": "VARCHAR",
            "prompt_tokens": "BIGINT", "completion_tokens": "BIGINT", "messages": "JSON", "model_parameters": "JSON",
            "metadata": {"user_api_key_alias": "VARCHAR", "user_api_key_team_alias": "VARCHAR",
                         "user_api_key_user_id": "VARCHAR",
                         "spend_logs_metadata": {"workload_id": "VARCHAR", "workload": "VARCHAR",
                                                 "session_id": "VARCHAR", "served_model_digest": "VARCHAR"},
                         "requester_metadata": {"workload_id": "VARCHAR", "session_id": "VARCHAR",
                                                "conversation_id": "VARCHAR"}},
            "error_information": {"error_message": "VARCHAR", "error_class": "VARCHAR"},
            "response": {
                "id": "VARCHAR", "prompt_token_ids": ["INTEGER"],
                "choices": [{"index": "INTEGER", "finish_reason": "VARCHAR", "message": "JSON",
                             "token_ids": ["INTEGER"]}],
                "usage": {"prompt_tokens_details": {"cached_tokens": "BIGINT"},
                          "completion_tokens_details": {"reasoning_tokens": "BIGINT"}}
            }
        }') as record
    from records
),

choices as (
    select
        object,
        row,
        record,
        record.response as response,
        record.metadata.spend_logs_metadata as spend,
        record.metadata.requester_metadata as requester,
        coalesce(record.status, 'success') = 'failure' as failed,
        unnest(range(greatest(coalesce(len(record.response.choices), 0), 1))) as part
    from parsed
),

chosen as (
    select *, response.choices[part + 1] as choice from choices
)

select
    object,
    row,
    part,
    'litellm' as format,
    coalesce(response.id, record.id) as request_id,
    coalesce(record.trace_id, record.id) as trace_id,
    coalesce(choice.index, part) as choice_index,
    coalesce(record.startTime, record.endTime) as written_ts,
    coalesce(spend.workload_id, spend.workload, requester.workload_id, record.metadata.user_api_key_team_alias,
             record.metadata.user_api_key_alias) as workload_name,
    record.metadata.user_api_key_alias as client,
    coalesce(requester.session_id, requester.conversation_id, spend.session_id, record.trace_id) as session_id,
    coalesce(nullif(record.end_user, ''), record.metadata.user_api_key_user_id) as user_id,
    coalesce(record.model, record.model_group) as model,
    record.custom_llm_provider as provider,
    spend.served_model_digest as served_model_digest,
    case json_type(record.messages)
        when 'VARCHAR' then to_json([struct_pack("role" := 'user', "content" := record.messages ->> '$')])
        when 'OBJECT' then concat('[', record.messages, ']')
        else record.messages
    end as messages,
    record.model_parameters -> '$.tools' as tools,
    json_merge_patch(coalesce(record.model_parameters, '{}'), '{"tools": null, "functions": null}') as params,
    choice.message as completion,
    coalesce(choice.message ->> '$.reasoning_content', choice.message ->> '$.reasoning') as reasoning,
    response.prompt_token_ids as prompt_token_ids,
    choice.token_ids as completion_token_ids,
    choice.finish_reason as finish_reason,
    case when failed then coalesce(record.error_str, record.error_information.error_message,
                                   record.error_information.error_class, 'failure') end as error,
    record.cache_hit as cache_hit,
    record.prompt_tokens as prompt_tokens,
    record.completion_tokens as completion_tokens,
    response.usage.prompt_tokens_details.cached_tokens as cached_tokens,
    response.usage.completion_tokens_details.reasoning_tokens as reasoning_tokens,
    coalesce(record.response_time * 1000, epoch_ms(moment(record.endTime)) - epoch_ms(moment(record.startTime)))
        as latency_ms,
    (try_cast(record.completionStartTime as double) - try_cast(record.startTime as double)) * 1000 as ttft_ms,
    record.response_cost as cost,
    case when failed then 'failure' else 'success' end as status,
    case when record.messages is null or record.call_type is null then 'missing_field' end as error_code,
    case
        when record.messages is null then 'messages is missing'
        when record.call_type is null then 'call_type is missing'
    end as message
from chosen

-- Checks that all formats share, ids and hashes. Rows that fail a check keep their error_code; the others have none.
-- interaction_id: the request's own id where the log has one; else its content and its time, which do not depend on
-- what else was read before.
create or replace temp table checked as
with shaped as (
    select
        extracted.* replace (
            nullif(extracted.request_id, '') as request_id,
            case
                when regexp_matches(extracted.messages, '"arguments"\s*:\s*[^"\s]')
                    then arguments_as_text(extracted.messages)
                else extracted.messages
            end as messages,
            case
                when regexp_matches(extracted.completion, '"arguments"\s*:\s*[^"\s]')
                    then arguments_as_text(extracted.completion)
                else extracted.completion
            end as completion
        ),
        batch.source,
        batch.uri,
        batch.fallback_ts,
        coalesce(batch.workloads[extracted.workload_name], $workload) as workload,
        moment(extracted.written_ts) as read_ts
    from extracted
    inner join batch using (object)
),

projected as (
    select
        *,
        json_transform(messages, '[{
            "role": "VARCHAR", "name": "VARCHAR", "content": "JSON", "tool_calls": "JSON", "tool_call_id": "VARCHAR",
            "function_call": "JSON"
        }]') as said,
        json_transform(completion, '{
            "role": "VARCHAR", "content": "JSON", "tool_calls": "JSON", "function_call": "JSON", "refusal": "VARCHAR"
        }') as answer
    from shaped
),

hashed as (
    select
        *,
        sha256(concat(
            cast(to_json(said) as varchar), chr(31), tools, chr(31), cast(to_json(answer) as varchar)
        )) as content_sha256
    from projected
),

tested as (
    select
        *,
        case
            when error_code is not null then error_code
            when said is null or len(said) = 0 then 'wrong_type'
            when len(list_filter(said, lambda each: each.role is null)) > 0 then 'wrong_type'
            when json_type(completion) <> 'OBJECT' then 'wrong_type'
            when completion is null and status = 'success' and format <> 'litellm' then 'missing_field'
            when written_ts is not null and read_ts is null then 'wrong_type'
        end as found_code,
        case
            when error_code is not null then message
            when said is null or len(said) = 0 then 'messages is not a list of messages'
            when len(list_filter(said, lambda each: each.role is null)) > 0 then 'a message has no role'
            when json_type(completion) <> 'OBJECT' then 'the answer is not a message object'
            when completion is null and status = 'success' and format <> 'litellm' then 'the answer has no message'
            when written_ts is not null and read_ts is null then 'the time is not one between the years 2000 and 2100'
        end as found_message
    from hashed
)

select
    * exclude (error_code, message),
    found_code as error_code,
    found_message as message,
    coalesce(read_ts, fallback_ts) as ts,
    sha256(concat_ws(
        chr(31), source, coalesce('id:' || request_id, concat('content:', content_sha256, ':', epoch_us(read_ts))),
        choice_index
    )) as interaction_id,
    case when user_id <> '' then sha256(concat($user_hash_key, chr(31), user_id)) end as user_hash
from tested

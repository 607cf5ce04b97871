-- Interactions in OpenTelemetry GenAI spans and log records.
-- needs: otlp_calls, served_digest()
-- makes: rows (object, row, part, format, request_id, alias_id, trace_id, choice_index, written_ts, workload_name, client,
--     session_id, user_id, model, provider, served_model_digest, messages, tools, params, completion, reasoning, finish_reason, error,
--     prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, latency_ms, ttft_ms, status, error_code, message)
with choices as (
    select
        *,
        -- evaluations are feedback; a span without content and its log records become one row once all objects are read
        unnest(case
            when call.kind in ('evaluation', 'side') then []
            else range(greatest(coalesce(len(call.choices), 0), 1))
        end) as choice_index
    from otlp_calls
),

numbered as (
    select
        *,
        -- further choices count on after the last item of the line
        case
            when choice_index = 0 then place
            else further + row_number() over (partition by object, row, choice_index > 0 order by place, choice_index)
        end as part,
        call.choices[choice_index + 1] as choice
    from choices
)

select
    object,
    row,
    cast(part as integer) as part,
    'otlp' as format,
    call.request_id as request_id,
    call.alias_id as alias_id,
    call.trace_id as trace_id,
    cast(choice_index as integer) as choice_index,
    call.written_ts as written_ts,
    call.workload as workload_name,
    service as client,
    call.session_id as session_id,
    call.user_id as user_id,
    call.model as model,
    call.provider as provider,
    served_digest(call.fingerprint) as served_model_digest,
    call.messages as messages,
    case when json_type(call.tools) = 'ARRAY' then call.tools end as tools,
    call.params as params,
    case when json_type(choice.message) = 'OBJECT' then choice.message end as completion,
    choice.message ->> '$.reasoning_content' as reasoning,
    coalesce(choice.finish_reason, call.finish_reasons[choice_index + 1]) as finish_reason,
    call.error as error,
    call.prompt_tokens as prompt_tokens,
    call.completion_tokens as completion_tokens,
    call.cached_tokens as cached_tokens,
    call.reasoning_tokens as reasoning_tokens,
    call.latency_ms as latency_ms,
    call.ttft_ms as ttft_ms,
    case when call.error is null then 'success' else 'failure' end as status,
    case
        when call.kind = 'passed over' then 'skipped'
        when call.kind = 'incomplete' then 'missing_field'
        when call.kind = 'too_long' then 'too_long'
        when call.kind = 'call' then null
        else 'wrong_type'
    end as error_code,
    case
        when call.kind = 'passed over' then call.rule
        when call.kind = 'incomplete' then 'the evaluation lacks a score and a label, or what it is about'
        when call.kind = 'too_long' then
            'the span or event has more than 16 MiB of text: shorten its messages, or log files as links'
        when call.kind = 'call' then null
        else 'the span or event is not as OTLP JSON writes it'
    end as message
from numbered

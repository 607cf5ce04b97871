-- name: calls
-- Spans and log records of OTLP documents, each with what it tells of a model call. place: its number in its line; further: the
-- number that the line's further choices count on from.
create or replace temp table otlp_calls as
with documents as (
    select object, row, source, otlp_items(raw, list_contains($fielded, source)) as items
    from records
    inner join batch using (object)
),
items as (
    select
        object, row, source,
        unnest(case when len(items) > 0 then items else [null] end) as sent,
        unnest(range(greatest(coalesce(len(items), 0), 1))) as place
    from documents
)
-- Items without the attributes of a model call are not parsed
select
    object,
    row,
    cast(place as integer) as place,
    1000000 as further,
    sent.service as service,
    cast(sent.item as varchar) as item,
    otlp_call(
        case
            when sent.item is null then '{"kind": "passed over", "rule": "otlp_no_span_or_event"}'
            when regexp_matches(sent.item, '"(gen_ai\.|llm\.|openinference\.)')
                then model_call_of(cast(sent.item as varchar), source)
            else '{"kind": "passed over", "rule": "otlp_other"}'
        end
    ) as call
from items

-- name: feedback
-- Feedback in OpenTelemetry GenAI evaluation events.
with evaluations as (
    select object, row, place, call, unnest(case when call.kind in ('call', 'evaluation') then call.evaluations end) as evaluation
    from otlp_calls
)
select
    object, row, place as part,
    call.kind = 'call' as extra,
    evaluation.response_id as request_id,
    case when evaluation.response_id is null then call.trace_id end as trace_id,
    call.workload as workload_name,
    evaluation.name as name,
    coalesce(cast(evaluation.value as varchar), evaluation.label) as written_value,
    evaluation.label as label,
    coalesce(evaluation.source, 'evaluation') as source,
    evaluation.comment as comment,
    evaluation.written_ts as written_ts
from evaluations
where coalesce(cast(evaluation.value as varchar), evaluation.label) is not null

-- name: interactions
-- Interactions in OpenTelemetry GenAI spans and log records.
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
    call.request_id as request_id, call.alias_id as alias_id, call.trace_id as trace_id,
    cast(choice_index as integer) as choice_index,
    call.written_ts as written_ts, call.workload as workload_name, service as client, call.session_id as session_id,
    call.user_id as user_id, call.model as model, call.provider as provider,
    served_digest(call.fingerprint) as served_model_digest,
    call.messages as messages,
    case when json_type(call.tools) = 'ARRAY' then call.tools end as tools,
    call.params as params,
    case when json_type(choice.message) = 'OBJECT' then choice.message end as completion,
    choice.message ->> '$.reasoning_content' as reasoning,
    coalesce(choice.finish_reason, call.finish_reasons[choice_index + 1]) as finish_reason,
    call.error as error, call.prompt_tokens as prompt_tokens, call.completion_tokens as completion_tokens,
    call.cached_tokens as cached_tokens, call.reasoning_tokens as reasoning_tokens, call.latency_ms as latency_ms,
    call.ttft_ms as ttft_ms, call.cost as cost,
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

-- name: count_unread
-- Counts attributes of model calls that nothing reads.
insert into unread_keys
with told as (
    select object, unnest(call.unread) as path from otlp_calls where call.kind = 'call'
)
select object, 'unread' as kind, split_part(path, chr(9), 1) as path, split_part(path, chr(9), 2) as other, count(*) as records
from told
group by all

-- name: sides
-- Spans without content, and log records with the content of a span.
insert into span_sides
select object, row, place, call.side, call.span as span_id, call.moment, service, item
from otlp_calls
where call.kind = 'side'

-- Feedback in OpenTelemetry GenAI evaluation events.
-- needs: otlp_calls
-- makes: rows (object, row, part, extra, request_id, trace_id, workload_name, name, written_value, label, source, comment,
--     written_ts)
with evaluations as (
    select object, row, place, call, unnest(case when call.kind in ('call', 'evaluation') then call.evaluations end) as evaluation
    from otlp_calls
)

select
    object,
    row,
    place as part,
    call.kind = 'call' as extra,
    evaluation.response_id as request_id,
    case when evaluation.response_id is null then call.trace_id end as trace_id,
    call.workload as workload_name,
    evaluation.name as name,
    coalesce(cast(evaluation.value as varchar), evaluation.label) as written_value,
    evaluation.label as label,
    'evaluation' as source,
    evaluation.comment as comment,
    evaluation.written_ts as written_ts
from evaluations
where coalesce(cast(evaluation.value as varchar), evaluation.label) is not null

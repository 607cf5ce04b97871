-- Feedback in OpenTelemetry GenAI evaluation events.
-- needs: model_call_of(), otlp_items(), records
-- makes: rows (object, row, part, extra, request_id, trace_id, workload_name, name, written_value, label, source, comment,
--     written_ts)
with documents as (
    select object, row, otlp_items(raw) as items
    from records
    where contains(raw, 'gen_ai.evaluation.result')
),

items as (
    select object, row, unnest(items) as sent, unnest(range(len(items))) as place
    from documents
),

calls as (
    select
        object,
        row,
        place,
        json_transform(model_call_of(cast(sent.item as varchar)), '{
            "kind": "VARCHAR", "trace_id": "VARCHAR", "workload": "VARCHAR",
            "evaluations": [{"name": "VARCHAR", "value": "DOUBLE", "label": "VARCHAR", "comment": "VARCHAR",
                             "response_id": "VARCHAR", "written_ts": "VARCHAR"}]
        }') as call
    from items
    where contains(sent.item, 'gen_ai.evaluation.result')
),

evaluations as (
    select object, row, place, call, unnest(case when call.kind in ('call', 'evaluation') then call.evaluations end) as evaluation
    from calls
)

select
    object,
    row,
    cast(place as integer) as part,
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

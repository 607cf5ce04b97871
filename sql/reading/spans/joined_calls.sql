-- Calls of spans that were joined with their log records, of some lines; as sql/reading/formats/otlp/calls.sql makes them of
-- single items. Their further choices count on from a number that no other row of the line has.
-- needs: joined_call_of(), joined_spans, lines
-- makes: temp table otlp_calls (object, row, place, further, service, item, call)
create or replace temp table otlp_calls as
select
    joined_spans.object,
    joined_spans.row,
    joined_spans.place,
    1500000 as further,
    joined_spans.service,
    joined_spans.item,
    json_transform(
        joined_call_of(joined_spans.item, joined_spans.events),
        '{
            "kind": "VARCHAR", "rule": "VARCHAR", "request_id": "VARCHAR", "alias_id": "VARCHAR", "trace_id": "VARCHAR",
            "written_ts": "VARCHAR", "workload": "VARCHAR", "session_id": "VARCHAR", "user_id": "VARCHAR",
            "model": "VARCHAR", "provider": "VARCHAR", "tools": "JSON", "params": "JSON", "messages": "JSON",
            "choices": [{"message": "JSON", "finish_reason": "VARCHAR"}], "prompt_tokens": "BIGINT",
            "completion_tokens": "BIGINT", "cached_tokens": "BIGINT", "reasoning_tokens": "BIGINT",
            "latency_ms": "DOUBLE", "ttft_ms": "DOUBLE", "error": "VARCHAR", "finish_reasons": ["VARCHAR"],
            "side": "VARCHAR", "span": "VARCHAR", "moment": "BIGINT",
            "evaluations": [{"name": "VARCHAR", "value": "DOUBLE", "label": "VARCHAR", "comment": "VARCHAR",
                             "response_id": "VARCHAR", "written_ts": "VARCHAR"}]
        }'
    ) as call
from joined_spans
semi join lines using (object, row)

-- What model_call_of() and joined_call_of() tell of an item, as columns.
-- makes: macro otlp_call(told)
create or replace temp macro otlp_call(told) as
json_transform(
    told,
    '{
        "kind": "VARCHAR", "rule": "VARCHAR", "request_id": "VARCHAR", "alias_id": "VARCHAR", "trace_id": "VARCHAR",
        "written_ts": "VARCHAR", "workload": "VARCHAR", "session_id": "VARCHAR", "user_id": "VARCHAR",
        "model": "VARCHAR", "provider": "VARCHAR", "fingerprint": "VARCHAR", "tools": "JSON", "params": "JSON", "messages": "JSON",
        "choices": [{"message": "JSON", "finish_reason": "VARCHAR"}], "prompt_tokens": "BIGINT",
        "completion_tokens": "BIGINT", "cached_tokens": "BIGINT", "reasoning_tokens": "BIGINT",
        "latency_ms": "DOUBLE", "ttft_ms": "DOUBLE", "error": "VARCHAR", "finish_reasons": ["VARCHAR"],
        "side": "VARCHAR", "span": "VARCHAR", "moment": "BIGINT",
        "evaluations": [{"name": "VARCHAR", "value": "DOUBLE", "label": "VARCHAR", "comment": "VARCHAR",
                         "response_id": "VARCHAR", "written_ts": "VARCHAR"}]
    }'
)

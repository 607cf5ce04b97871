-- Spans and log records of one OTLP document in order, each with its service.
-- makes: macro otlp_items(raw)
create or replace temp macro otlp_items(raw) as
list_concat(
    flatten(list_transform(
        json_transform(raw, '{"resourceSpans": [{
            "resource": {"attributes": [{"key": "VARCHAR", "value": {"stringValue": "VARCHAR"}}]},
            "scopeSpans": [{"spans": ["JSON"]}]
        }]}').resourceSpans,
        lambda sent: list_transform(
            flatten(list_transform(sent.scopeSpans, lambda scope: coalesce(scope.spans, []))),
            lambda span: struct_pack(item := span, service := list_filter(
                sent.resource.attributes, lambda each: each.key = 'service.name'
            )[1].value.stringValue)
        )
    )),
    flatten(list_transform(
        json_transform(raw, '{"resourceLogs": [{
            "resource": {"attributes": [{"key": "VARCHAR", "value": {"stringValue": "VARCHAR"}}]},
            "scopeLogs": [{"logRecords": ["JSON"]}]
        }]}').resourceLogs,
        lambda sent: list_transform(
            flatten(list_transform(sent.scopeLogs, lambda scope: coalesce(scope.logRecords, []))),
            lambda logged: struct_pack(item := logged, service := list_filter(
                sent.resource.attributes, lambda each: each.key = 'service.name'
            )[1].value.stringValue)
        )
    ))
)

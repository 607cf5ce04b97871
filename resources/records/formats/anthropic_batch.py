"""Anthropic's message batches: request lines {custom_id, params} and, in other objects, the lines of the results file
{custom_id, result: {type: succeeded | errored | canceled | expired, message | error}}.

A record is a pair: its place is the result's line, its format anthropic. `openai_batch` says how sides meet.
"""

from __future__ import annotations

from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    if "custom_id" not in record:
        return False
    params, result = record.get("params"), record.get("result")
    if isinstance(result, dict):
        return result.get("type") in ("succeeded", "errored", "canceled", "expired")
    return isinstance(params, dict) and "messages" in params


FORMAT = Format("anthropic_batch", recognises, fills=(), paired=True, rows_as="anthropic")

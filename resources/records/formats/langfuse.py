"""Langfuse's blob export of observations (observations_v2/, and the older observations/ and traces/), one row per line.

Field names as in Langfuse's export reference. Only a GENERATION is an interaction: other types and traces are counted and
skipped. Its id becomes the request id, so that scores find it. Latencies are computed from the row's timestamps, because
`latency` is in seconds or milliseconds depending on the integration's age; for time_to_first_token, the row's latency tells
the unit. `input` and `output` are text, or JSON in text: messages, {messages, tools}, one message, choices.
"""

from __future__ import annotations

from resources.records.formats.format import Format

TYPES = ("SPAN", "GENERATION", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL")


def recognises(record: dict) -> bool:
    if "trace_id" in record and "start_time" in record:
        return record.get("type") in TYPES
    return {"id", "timestamp", "project_id", "bookmarked", "public"} <= record.keys()


FORMAT = Format("langfuse", recognises)

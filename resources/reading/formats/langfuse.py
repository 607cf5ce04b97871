"""Langfuse's blob export of observations (observations_v2/, and the older observations/ and traces/), a row a line.

Field names as in Langfuse's export reference. Only a GENERATION is an interaction: other types and traces are counted
and passed over. Its id is the request's, so that scores find it. Latencies are taken from the row's own times, since
`latency` is seconds or milliseconds by the age of the integration; where time_to_first_token stands alone, the row's
latency tells its unit. `input` and `output` are text, or JSON in text: messages, {messages, tools}, one message, choices.
"""

from __future__ import annotations

from resources.reading.formats.format import Format

TYPES = ("SPAN", "GENERATION", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL")


def recognises(record: dict) -> bool:
    if "trace_id" in record and "start_time" in record:
        return record.get("type") in TYPES
    return {"id", "timestamp", "project_id", "bookmarked", "public"} <= record.keys()


FORMAT = Format("langfuse", recognises)

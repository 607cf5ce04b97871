"""LiteLLM's StandardLoggingPayload, as its S3 logger writes it: one JSON object per file, or JSON lines.

Keys as in BerriAI/litellm litellm/types/utils.py: times are epoch seconds in camelCase, tools and sampling parameters are in
model_parameters, a failed request has status "failure" and error_str. trace_id is LiteLLM's session.
"""

from __future__ import annotations

from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    return "call_type" in record and "messages" in record and ("startTime" in record or "response" in record)


FORMAT = Format("litellm", recognises)

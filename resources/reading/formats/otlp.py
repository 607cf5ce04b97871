"""OpenTelemetry's GenAI conventions in OTLP JSON: a TracesData or LogsData a line, or one in a file of its own.

A span of a model's call (chat, text_completion, generate_content), or the event that holds its details, is a record; so
is every other span and event, which is counted and passed over, and so is a call without content, as content is opt-in
there. Where a span and its event both tell of a call they have one id, and the earlier one stays. Evaluation results are
feedback. resources/reading/otlp.py knows the conventions, old and new.
"""

from __future__ import annotations

from resources.reading.formats.format import Format


def recognises(record: dict) -> bool:
    return any(isinstance(record.get(key), list) for key in ("resourceSpans", "resourceLogs", "resourceMetrics"))


FORMAT = Format("otlp", recognises, fills=("interactions", "feedback"))

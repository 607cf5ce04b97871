"""OpenTelemetry's GenAI conventions in OTLP JSON: one TracesData or LogsData per line, or one per file.

The span of a model call (chat, text_completion, generate_content) with content is a record. A span without content, and log
records that have its content (the event with the details, or older ones with a message each), are one record, also if they are
in different objects; a call whose span is not found is read from its log records alone. Other spans and events are counted and
skipped, and so are calls without content, which is opt-in there. If a span and its event both have content, the earlier one is
kept. Evaluation results are feedback. resources/records/providers/otlp.py knows the conventions, old and new.
"""

from __future__ import annotations

from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    return any(isinstance(record.get(key), list) for key in ("resourceSpans", "resourceLogs", "resourceMetrics"))


FORMAT = Format("otlp", recognises, fills=("interactions", "feedback"), spans=True)

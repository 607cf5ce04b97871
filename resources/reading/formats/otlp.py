"""OpenTelemetry's GenAI conventions in OTLP JSON: one TracesData or LogsData per line, or one per file.

The span of a model call (chat, text_completion, generate_content), or the event with its details, is a record. Other spans and
events are counted and skipped, and so are calls without content, which is opt-in there. A span and its event have one id; the
earlier one is kept. Evaluation results are feedback. resources/reading/otlp.py knows the conventions, old and new.
"""

from __future__ import annotations

from resources.reading.formats.format import Format


def recognises(record: dict) -> bool:
    return any(isinstance(record.get(key), list) for key in ("resourceSpans", "resourceLogs", "resourceMetrics"))


FORMAT = Format("otlp", recognises, fills=("interactions", "feedback"))

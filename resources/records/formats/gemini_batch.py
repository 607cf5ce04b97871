"""Gemini's batches: request lines {key, request: {contents, ...}} and, in other objects, the lines of the result file
{key, response: {candidates, ...}} or {key, error: {code, message}}.

A record is a pair: its place is the result's line, its format gemini. `openai_batch` says how sides meet. Vertex AI's batch
output has the request on its line and is of the format gemini.
"""

from __future__ import annotations

from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    if "key" not in record or ("request" in record and "response" in record):
        return False
    request, response, error = record.get("request"), record.get("response"), record.get("error")
    if isinstance(response, dict):
        return bool({"candidates", "promptFeedback", "usageMetadata", "prompt_feedback", "usage_metadata"} & response.keys())
    if isinstance(error, dict):
        return "code" in error or "message" in error
    return isinstance(request, dict) and "contents" in request


FORMAT = Format("gemini_batch", recognises, fills=(), paired=True, rows_as="gemini")

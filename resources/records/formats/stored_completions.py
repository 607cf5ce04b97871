"""OpenAI's stored completions: pages of GET /chat/completions ({object: "list", data: [...]}), or one completion per line, also
of loggers that write the request's keys and the response's into one object ({messages, tools, choices, usage}).

The API lists a completion's messages separately (GET /chat/completions/{id}/messages): an export must add them as `messages`,
`input` or `request.messages`; a completion without them is quarantined. Session, trace, workload, client and user come from
the completion's metadata.
"""

from __future__ import annotations

from typing import Any

from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    listed = record.get("data")
    if record.get("object") == "list" and isinstance(listed, list):
        return not listed or (isinstance(listed[0], dict) and ("choices" in listed[0] or "role" in listed[0]))
    if record.get("object") == "chat.completion":
        return isinstance(record.get("choices"), list)
    return _holds_answer(record) and answered_beside(record) and "request" not in record


def answered_beside(record: dict) -> bool:
    """Whether a request's messages, without the answer, stand beside a response of the chat API or its choices."""
    spoken = record.get("messages")
    if not isinstance(spoken, list) or not spoken or (isinstance(spoken[-1], dict) and spoken[-1].get("role") == "assistant"):
        return False
    return any(map(_holds_answer, (record, *record.values())))


def _holds_answer(body: Any) -> bool:
    choices = body.get("choices") if isinstance(body, dict) else None
    listed = choices if isinstance(choices, list) else []
    return any(isinstance(each, dict) and isinstance(each.get("message"), dict) for each in listed)


FORMAT = Format("stored_completions", recognises)

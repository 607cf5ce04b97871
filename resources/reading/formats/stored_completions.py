"""OpenAI's stored completions: pages of GET /chat/completions ({object: "list", data: [...]}), or one completion a line.

The API lists a completion's messages in a call of its own (GET /chat/completions/{id}/messages): an export has to put
them beside it, as `messages`, `input` or `request.messages`; a completion without them is quarantined. Session, trace,
workload, client and user are read from the completion's metadata.
"""

from __future__ import annotations

from resources.reading.formats.format import Format


def recognises(record: dict) -> bool:
    listed = record.get("data")
    if record.get("object") == "list" and isinstance(listed, list):
        return not listed or (isinstance(listed[0], dict) and ("choices" in listed[0] or "role" in listed[0]))
    return record.get("object") == "chat.completion" and isinstance(record.get("choices"), list)


FORMAT = Format("stored_completions", recognises)

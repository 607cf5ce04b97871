"""OpenAI's stored completions: pages of GET /chat/completions ({object: "list", data: [...]}), or one completion per line.

The API lists a completion's messages separately (GET /chat/completions/{id}/messages): an export must add them as `messages`,
`input` or `request.messages`; a completion without them is quarantined. Session, trace, workload, client and user come from
the completion's metadata.
"""

from __future__ import annotations

from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    listed = record.get("data")
    if record.get("object") == "list" and isinstance(listed, list):
        return not listed or (isinstance(listed[0], dict) and ("choices" in listed[0] or "role" in listed[0]))
    return record.get("object") == "chat.completion" and isinstance(record.get("choices"), list)


FORMAT = Format("stored_completions", recognises)

"""Feedback of people or graders: a value or a label, and the id of what it is about.

{response_id | request_id | trace_id | session_id, name, value | score | rating | reward | label, comment | text, source,
timestamp}. up, down, true, false, like, dislike and similar words become 1 and -1; numbers stay as they are.
"""

from __future__ import annotations

from resources.records.formats.format import Format

TARGETS = ("response_id", "request_id", "interaction_id", "completion_id", "trace_id", "session_id", "conversation_id")
VALUES = ("value", "score", "rating", "thumb", "thumbs", "label", "feedback", "reward")


def recognises(record: dict) -> bool:
    about = any(key in record for key in TARGETS)
    return about and any(key in record for key in VALUES) and not {"messages", "request"} & record.keys()


FORMAT = Format("feedback", recognises, fills=("feedback",))

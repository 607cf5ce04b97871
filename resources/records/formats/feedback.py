"""Feedback of people or graders: a value or a label, and the id of what it is about.

{response_id | request_id | trace_id | session_id, name, value | score | rating | reward | label, comment | text, source,
timestamp}; LangSmith's {run_id, key, score | value}. up, down, true, false, like, dislike and similar words become 1 and -1;
numbers stay as they are. A record that holds a chat of its own is no feedback, but a chat with feedback.
"""

from __future__ import annotations

from resources.records.edits import is_edit
from resources.records.field_mapping import wrapped_pair
from resources.records.formats.format import Format

SESSIONS = ("session_id", "conversation_id")
TARGETS = ("response_id", "request_id", "interaction_id", "completion_id", "trace_id", *SESSIONS)
VALUES = ("value", "score", "rating", "thumb", "thumbs", "label", "feedback", "reward")


def _is_about_something(record: dict) -> bool:
    # a run alone may be one of any program: LangSmith's feedback has a key, too
    is_langsmith = {"run_id", "key"} <= record.keys()
    return (is_langsmith or any(key in record for key in TARGETS)) and any(key in record for key in VALUES)


def recognises(record: dict) -> bool:
    if not _is_about_something(record) or {"messages", "request"} & record.keys() or is_edit(record):
        return False
    names_answer = any(key in record for key in TARGETS if key not in SESSIONS)  # its texts are copies of a logged call
    places = (record, *(value for value in record.values() if isinstance(value, dict)))
    return not any(wrapped_pair(place, with_texts=not names_answer) for place in places)


FORMAT = Format("feedback", recognises, fills=("feedback",), when_named=_is_about_something)

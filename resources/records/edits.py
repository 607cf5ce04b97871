"""Recognises an edit: what a model said, and what a person made of it. A name that any program may write (`final`, `sent`,
`expected_output`) is a correction only beside a text that is a model's by its name; `corrected` and the like beside any answer.

    sides_of({"request_id": "r1", "original": "It is Bern.", "corrected": "It is Rome."})     # ("It is Bern.", "It is Rome.")
"""

import hashlib
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from model_ops.chat_apis import json_text, objects
from resources.records.json_paths import structure_in
from resources.records.synonyms import words_of

REQUESTS = ("response_id", "request_id", "completion_id", "run_id", "observation_id", "interaction_id")
TRACES, SESSIONS = ("trace_id",), ("session_id", "conversation_id")
_SAID = r"(_?(answers?|responses?|repl(y|ies)|outputs?|texts?|messages?|completions?|drafts?|suggestions?|content))"
_OF_A_MODEL = re.compile(
    rf"(original|before|old|draft(ed)?|suggest(ion|ed)|generated|proposed){_SAID}?|(model|ai|bot|llm|assistant|raw|machine){_SAID}"
    r"|(answer|response|reply|text|output)_(original|before|old|draft)"
)
_CORRECTED = re.compile(
    rf"(corrected|correction|edited|edit|revised|revision|fixed|ideal|improved|rewritten|human_(edit(ed)?|corrected)){_SAID}?|human{_SAID}"
    r"|(answer|response|reply|text|output)_(corrected|edited|revised|fixed|correction)"
)
_PERHAPS = re.compile(
    rf"(after|final|sent|new|preferred|approved|accepted|expected|gold(en)?|agent){_SAID}?|(answer|response|reply|text|output)_(after|final|new|sent)"
)
_ANSWER = re.compile(_SAID.removesuffix(")").replace("_?", "", 1) + ")")


_CHATS = {"request", "messages", "conversations", "chosen", "rejected"}


@lru_cache(maxsize=4096)
def _side(key: str) -> str:
    name = "_".join(words_of((key,)))
    kinds = (("original", _OF_A_MODEL), ("corrected", _CORRECTED), ("perhaps", _PERHAPS), ("answer", _ANSWER))
    return next((side for side, pattern in kinds if pattern.fullmatch(name)), "")


def _said(value: Any) -> str:
    """What an answer says, of a text, a message, or an object with one; "" for anything else."""
    if isinstance(value, str):
        inner = structure_in(value)
        return value if inner is None else _said(inner) or value
    if isinstance(value, list):
        return _said(value[-1]) if len(objects(value)) == len(value) > 0 else ""
    if not isinstance(value, dict):
        return ""
    keys = [key for key in ("content", "output", "answer", "text", "response", "messages") if value.get(key)]
    return _said(value[keys[0] if keys else next(iter(value))]) if keys or len(value) == 1 else ""


def sides_of(record: dict[str, Any]) -> tuple[str, str] | None:
    """What the model said ("" where the record does not have it) and its correction; None for a record that is no edit."""
    sides: dict[str, str] = {}
    for key, value in record.items():
        if key.lower().startswith(("expected", "gold")) and has_prompt(record):  # an item of an evaluation, with its result
            continue
        if (side := _side(key)) and (text := _said(value)).strip() and not isinstance(value, bool):
            sides.setdefault(side, text)
    if "corrected" in sides:
        return sides.get("original", sides.get("answer", "")), sides["corrected"]
    return (sides["original"], sides["perhaps"]) if "original" in sides and "perhaps" in sides else None


def _ids(record: dict[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    return (str(record[name]) for name in names if isinstance(record.get(name), str | int) and record[name] != "")


def has_prompt(record: dict[str, Any]) -> bool:
    return any(record.get(key) for key in ("instruction", "prompt", "question", "query", "input"))


def is_edit(record: dict[str, Any]) -> bool:
    """Whether a record is an edit of a logged answer: without a prompt of its own, or with the id of its request."""
    if _CHATS & record.keys() or (sides := sides_of(record)) is None:
        return False
    if next(_ids(record, (*REQUESTS, *TRACES)), None) is not None:
        return True
    return not has_prompt(record) and bool(sides[0] or next(_ids(record, ("id", *SESSIONS)), None))


def lacks_correction(record: dict[str, Any]) -> bool:
    """Whether a record has what a model said and an empty correction of it: no edit, but nothing else either."""
    if _CHATS & record.keys() or has_prompt(record):
        return False
    sides = {_side(key): value for key, value in record.items() if not isinstance(value, bool)}
    return "corrected" in sides and not _said(sides["corrected"] or "").strip() and _said(sides.get("original")) != ""


def edit_of(text: str) -> str:
    """The ids of an edit, what was said and what should have been, as JSON text."""
    try:
        record = json.loads(text)
        original, corrected = sides_of(record) or ("", "")
        request = next(_ids(record, REQUESTS), None)
        trace, session = next(_ids(record, TRACES), None), next(_ids(record, SESSIONS), None)
        if request is None and trace is None and session is None:
            request = next(_ids(record, ("id",)), None)
        return json_text(
            {
                "request_id": request,
                "trace_id": trace if request is None else None,
                "session_id": session if request is None and trace is None else None,
                "answer_id": answer_id(original) if original else None,
                "corrected": corrected or None,
                "label": "unchanged" if original and original.split() == corrected.split() else "corrected",
            }
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return "{}"


def answer_id(said: str) -> str:
    """The id of an answer by its text, without differences of spacing; as in reading/ties/conversations_by_text."""
    return f"answer:{hashlib.sha256(' '.join(said.split()).encode('utf-8', 'replace')).hexdigest()}"

"""The prompt of a record of an evaluation suite or of a file of tasks: every part of it, under whatever keys it lies.

conversation({"system": "Be brief.", "question": "2 + 2?"}, "2 + 2?")     # [a system message, a user message]
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from model_ops.jobs import counted
from resources.records import CHOICES, lines_of

PROMPTS = ("prompt", "question", "input", "instruction", "text", "problem")
"""Keys of a prompt, a text or a list of messages, the first of them that a record has."""
SYSTEMS = ("system", "system_prompt")
CONTEXTS = ("context", "passage", "document")
ANSWERS = (
    "answer", "output", "response", "solution", "target", "reference", "canonical_solution", "ground_truth", "final_answer",
    "expected_answer", "ideal",
)  # fmt: skip
_READ = {
    *PROMPTS, *SYSTEMS, *CONTEXTS, *CHOICES, *ANSWERS, "messages", "turns", "tools", "function", "test", "tests", "entry_point",
    "pattern", "regex", "json_schema", "schema", "instruction_id_list", "kwargs", "reward_model", "chosen", "rejected",
}  # fmt: skip
MOST_KEYS = 12


def messages_of(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The messages of a record, under `messages` or a key of prompts; None if it has none."""
    for name in ("messages", *PROMPTS):
        listed = record.get(name)
        if isinstance(listed, list) and listed and all(isinstance(each, dict) and "role" in each for each in listed):
            return listed
    return None


def conversation(record: Mapping[str, Any], prompt: str) -> list[dict[str, Any]]:
    """The record's own messages up to its last answer, else the prompt as one user message, after what `system` says."""
    messages = messages_of(record) or [*_history(record), {"role": "user", "content": _question(record, prompt)}]
    messages = messages[:-1] if messages[-1]["role"] == "assistant" and len(messages) > 1 else messages
    system = "\n\n".join(record[name] for name in SYSTEMS if _is_text(record.get(name)))
    if not system:
        return messages
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": system}, *messages]
    own = messages[0].get("content")
    said = own if own == system or not isinstance(own, str) else f"{system}\n\n{own}"
    return [{**messages[0], "content": said}, *messages[1:]]


def _history(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Earlier turns as Alpaca's `history` has them: pairs of texts."""
    pairs = record.get("history")
    if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
        return []
    roles = ("user", "assistant")
    return [{"role": role, "content": text} for pair in pairs for role, text in zip(roles, pair, strict=True)]


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_text, value))


def _question(record: Mapping[str, Any], prompt: str) -> str:
    """The prompt with the text that it is asked about, and with the choices that it has."""
    before = [record[name] for name in CONTEXTS if _is_text(record.get(name)) and record[name].strip() not in prompt]
    choices = next((record[name] for name in CHOICES if record.get(name)), None)
    return "\n\n".join([*before, "\n".join([prompt, *lines_of(choices, prompt)])])


def unread_keys(record: Mapping[str, Any]) -> list[str]:
    """Keys that hold a sentence or a list and are no part of the prompt or of what verifies an answer."""
    return [
        name
        for name, value in record.items()
        if name not in _READ
        and not (name == "history" and _history(record))
        and ((isinstance(value, str) and len(value.split()) > 3) or (isinstance(value, list) and value))
    ]


def notes_on_keys(suite: str, keys: Counter[str]) -> list[str]:
    """One sentence that names the unread keys of a file; none without them."""
    shown = ", ".join(f"`{name}` ({counted(records, 'record')})" for name, records in keys.most_common(MOST_KEYS))
    return [f"{suite}: no prompt holds {'the key' if len(keys) == 1 else 'these keys'}: {shown}"] if keys else []


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())

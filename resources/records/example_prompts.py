"""Composes the prompt of a line of examples from every key that holds a part of it, in this order: the system prompt, the turns
of `history`, the conversation or the question (the first of QUESTIONS). `input` comes after another question, a context after
an instruction and before any other question, `choices` below. A key whose text stands in the prompt already adds nothing; with
more, `problem` names the keys, and the record goes to quarantine. DuckDB calls prompt_of; it never raises."""

import json
from string import ascii_uppercase
from typing import Any

from model_ops.chat_apis import json_text, mapping
from resources.records.edits import sides_of
from resources.records.json_paths import structure_in

CHOICES = ("choices", "options")


def lines_of(choices: Any, prompt: str) -> list[str]:
    labels: Any = ascii_uppercase
    texts = choices
    if isinstance(choices, dict):
        labels, texts = choices.get("label"), choices.get("text")
        if all(len(key) == 1 and key.isalnum() for key in choices):
            labels, texts = list(choices), list(choices.values())
    if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
        return []
    if all(text in prompt for text in texts):
        return []
    labels = labels if isinstance(labels, list) and len(labels) == len(texts) else ascii_uppercase
    return [
        text if text.startswith((f"{label})", f"{label}.", f"({label})")) else f"{label}. {text}"
        for label, text in zip(labels, texts, strict=False)
    ]


SYSTEMS = ("system", "system_prompt", "system_message")
CONVERSATIONS = ("conversations", "conversation", "messages")
QUESTIONS = ("instruction", "prompt", "question", "query", "input")
CONTEXTS = ("context", "contexts", "passage", "passages", "document", "documents", "article")
MEDIA = ("images", "image", "videos", "video", "audios", "audio")
KEYS = frozenset((*SYSTEMS, "history", *CONVERSATIONS, *QUESTIONS, *CONTEXTS, *CHOICES, *MEDIA, "suffix"))
_ASKED = ("user", "human", "question", "instruction", "prompt", "query", "input")
_SAID = ("assistant", "gpt", "bot", "answer", "output", "response")


class UncomposedError(Exception):
    """A part of the prompt has no known place; the message names its key."""


def prompt_of(text: str) -> str:
    """The messages before the answer (of a whole conversation, all of them), an answer and its correction, and why the messages
    may lack a part, as JSON text."""
    try:
        record = json.loads(text)
        edit = None if "chosen" in record else sides_of(record)
        return json_text({"messages": composed(record), "edit": edit, "problem": None})
    except UncomposedError as reason:
        return json_text({"messages": None, "problem": str(reason)})
    except (ValueError, TypeError, AttributeError, RecursionError):
        return '{"messages":null,"problem":null}'


def composed(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a record's keys. Raises UncomposedError."""
    parts = {key: record[key] for key in KEYS if record.get(key) not in (None, "", [], {})}
    for key in (*MEDIA, "suffix"):
        if key in parts and not isinstance(parts[key], bool | int | float):
            raise UncomposedError(f"`{key}` is a part of the prompt that is no text before the answer")
    for key in CHOICES:
        rest = _text([value for other, value in parts.items() if other not in CHOICES])
        if key in parts and not lines_of(parts[key], rest):  # none, such as the options of a request, or in the prompt already
            del parts[key]
    if isinstance(body := parts.get("input"), dict):  # OpenAI's DPO lines
        parts = {"messages": body.get("messages"), **{key: parts[key] for key in SYSTEMS if key in parts}}
    talk = next((key for key in CONVERSATIONS if isinstance(parts.get(key), list)), None)
    turns = list(parts.pop(talk)) if talk else _opening(record)
    before = _turns(parts.pop("history")) if "history" in parts else []
    systems = [parts.pop(key) for key in SYSTEMS if key in parts]
    if not turns:
        lead = next((key for key in QUESTIONS if key in parts), None)
        turns = _question(parts.pop(lead), lead, parts) if lead else []
    messages = [*before, *turns]
    for system in systems:
        if _adds(system, messages):
            if messages and _speaker(mapping(messages[0])) in ("system", "developer"):
                raise UncomposedError("the line has two system prompts that differ")
            messages = [{"role": "system", "content": system}, *messages]
    others = [
        key
        for key, value in parts.items()
        if _is_prose(value)
        and _adds(value, messages)
        and not (key in QUESTIONS and all(_words(message) in _words(value) for message in messages))
    ]
    if others and messages:
        raise UncomposedError(
            f"`{'`, `'.join(sorted(others))}` may be a part of the prompt, with no known place beside the rest"
        )
    last = messages[-1] if messages else None
    if record.get("chosen") and talk and _speaker(mapping(last)) in ("assistant", "gpt") and not _adds(last, record["chosen"]):
        messages.pop()  # the chosen answer
    return messages


def _question(asked: Any, key: str, parts: dict[str, Any]) -> list[dict[str, Any]]:
    asked = structure_in(asked) or asked if isinstance(asked, str) and asked.lstrip()[:2] == "[{" else asked
    if not isinstance(asked, str):
        return asked if isinstance(asked, list) else [asked]
    further = (
        "input"
        if isinstance(parts.get("input"), str)
        else next((name for name in CONTEXTS if _is_prose(parts.get(name))), None)
    )
    if further is not None and (further == "input" or _adds(parts[further], [asked])):
        text = _text(parts.pop(further))
        asked = "\n\n".join((asked, text) if key == "instruction" or further == "input" else (text, asked))
    choices = next((name for name in CHOICES if name in parts), None)
    if choices is not None:
        asked = "\n".join((asked, *lines_of(parts.pop(choices), asked)))
    return [{"role": "user", "content": asked}]


def _opening(record: dict[str, Any]) -> list[dict[str, Any]]:
    chosen = record.get("chosen")
    turns = chosen if isinstance(chosen, list) and chosen and isinstance(chosen[0], dict) else []
    return turns[:-1] if turns and _speaker(turns[0]) in ("user", "human", "system", "developer") else []


def _turns(history: Any) -> list[dict[str, Any]]:
    history = structure_in(history) or history if isinstance(history, str) else history
    turns: list[dict[str, Any]] = []
    for turn in history if isinstance(history, list) else [history]:
        if isinstance(turn, dict) and _speaker(turn):
            turns.append(turn)
            continue
        if isinstance(turn, dict):
            turn = [next((turn[key] for key in keys if key in turn), None) for keys in (_ASKED, _SAID)]
        if not isinstance(turn, list) or len(turn) != 2 or not all(isinstance(said, str) for said in turn):
            raise UncomposedError("`history` is neither a list of turns (question and answer) nor of messages")
        turns += [{"role": role, "content": said} for role, said in zip(("user", "assistant"), turn, strict=True) if said]
    return turns


def _speaker(message: dict[str, Any]) -> str:
    speaker = message.get("role", message.get("from"))
    return speaker.strip().lower() if isinstance(speaker, str) else ""


def _text(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("content", value.get("value", value.get("text", [*value.values()])))
    return "\n\n".join(filter(None, map(_text, value))) if isinstance(value, list) else value if isinstance(value, str) else ""


def _is_prose(value: Any) -> bool:
    said = _text(value).strip()
    return any(sign.isspace() for sign in said) or (bool(said) and not said.isascii())


def _adds(value: Any, known: Any) -> bool:
    return _words(value) not in _words(known)


def _words(value: Any) -> str:
    return " ".join(_text(value).split())

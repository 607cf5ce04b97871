"""Messages as the OpenAI API has them, whatever server wrote them: calls, and answers without control text.

    normal_messages('[{"role": "assistant", "content": "Mars.</s>"}]')     # '[{"role":"assistant","content":"Mars."}]'

Arguments of calls are JSON texts. A call without arguments, or with an empty text or null, calls a tool without parameters: {}.
A call of a custom tool is one of a function with the argument `input`, as in the Responses API. DuckDB calls it
(sql/reading/message_macros.sql). It never raises.
"""

from __future__ import annotations

import json
import re
from typing import Any

from resources.reading.control_text import without_leak
from resources.reading.json_text import json_text

_THOUGHT = re.compile(r"\A\s*(?:\[THINK\](.*?)\[/THINK\]|<thought>(.*?)</thought>|◁think▷(.*?)◁/think▷)", re.DOTALL)
"""Reasoning at the beginning of an answer, in other marks than <think>."""


def normal_messages(text: str) -> str:
    """The list of messages, or the one answer, as JSON text."""
    try:
        value = json.loads(text)
        for message in value if isinstance(value, list) else [value]:
            if isinstance(message, dict):
                for holder in _callers(message):
                    given = holder.get("arguments")
                    if given is None or (isinstance(given, str) and given.strip() in ("", "null")):
                        holder["arguments"] = "{}"
                    elif not isinstance(given, str):
                        holder["arguments"] = json_text(given)
                if message is value or message.get("role") == "assistant":
                    _cut(message)
                if message is value and isinstance(content := message.get("content"), str):
                    message["content"] = _with_think(content)
        return json_text(value)
    except (ValueError, RecursionError):  # too deep, or numbers out of range: no list of messages, so it goes to quarantine
        return "0"


def _callers(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    for call in calls:
        if isinstance(custom := call.pop("custom", None), dict):
            arguments = {"input": custom.get("input") or ""}
            call |= {"type": "function", "function": {"name": custom.get("name"), "arguments": arguments}}
    functions = [call.get("function") for call in calls]
    return [holder for holder in [*functions, message.get("function_call")] if isinstance(holder, dict)]


def _with_think(content: str) -> str:
    """The answer with its reasoning within <think>, whatever marks it; the prompt may have held the first mark."""
    thought, mark, answer = content.partition("</think>")
    if mark and thought.strip() and "think>" not in thought + answer and re.match(r"\s*\n\s*\S", answer) \
            and not thought.endswith(("`", '"', "'", " ")):
        return "<think>" + content
    return _THOUGHT.sub(lambda found: f"<think>{found[found.lastindex or 1]}</think>", content)


def _cut(message: dict[str, Any]) -> None:
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = without_leak(content)
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            part["text"] = without_leak(part["text"])

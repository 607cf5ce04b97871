"""Turns the calls and results of a ShareGPT conversation into OpenAI messages: calls in a row are one turn.

    call_turns('[{"from": "function_call", "value": "{...}"}, {"from": "function_call", ...}, {"from": "observation", ...}]')
    # '[{"role": "assistant", "tool_calls": [{...}, {...}], ...}, {"role": "tool", "tool_call_id": "call_1", ...}]'

Results answer the calls in order; a result that is a list answers several calls where it has one element for each. A value may
hold one call, a list of calls, or one call per line. A call right after the assistant's text belongs to its turn. Other
messages stay as they are; a call that is not JSON with a name gives a message without role. DuckDB calls it.
"""

from __future__ import annotations

import json
from typing import Any

from resources.reading.json_text import json_text

CALLERS = {"function_call", "tool_call", "function_calls", "tool_calls"}
RESULTS = {"tool", "observation", "observations", "function", "function_response", "tool_response"}
SPEAKERS = {"gpt", "assistant", "chatgpt", "bot", "model", "ai"}


def call_turns(text: str) -> str:
    """The conversation as JSON text."""
    try:
        told = json.loads(text)
        return json_text(_turned(told if isinstance(told, list) else [told]))
    except (ValueError, RecursionError):
        return text


def _turned(told: list[Any]) -> list[Any]:
    turns: list[Any] = []
    waiting: list[str] = []  # ids of calls without a result
    count = 0
    for place, message in enumerate(told):
        speaker = _speaker(message)
        if speaker in CALLERS:
            calls = _calls(message.get("value"), count)
            if calls is None:
                turns.append({"content": message.get("value")})
                continue
            count += len(calls)
            if not (turns and _speaker(told[place - 1]) in CALLERS and "tool_calls" in turns[-1]):
                waiting = []
                turns.append(_begun(turns, told[place - 1] if place else None))
            turns[-1]["tool_calls"] += calls
            waiting += [call["id"] for call in calls]
        elif speaker in RESULTS:
            values = [message.get("value")]
            if _speaker(told[place + 1] if place + 1 < len(told) else None) not in RESULTS:
                values = _each(message.get("value"), len(waiting))
            for value in values:
                answered = message.get("tool_call_id") or (waiting.pop(0) if waiting else "call_0")
                turns.append({"role": "tool", "content": value, "tool_call_id": answered})
        else:
            turns.append(message)
    return turns


def _begun(turns: list[Any], before: Any) -> dict[str, Any]:
    """The turn of a first call: that of the assistant's text right before it, if any."""
    if _speaker(before) in SPEAKERS and "weight" not in before and isinstance(before.get("value"), str) and turns[-1] is before:
        turns.pop()
        return {"role": "assistant", "content": before["value"], "tool_calls": []}
    return {"role": "assistant", "content": None, "tool_calls": []}


def _speaker(message: Any) -> str | None:
    return str(message["from"]).strip().lower() if isinstance(message, dict) and "from" in message else None


def _calls(value: Any, before: int) -> list[dict[str, Any]] | None:
    """The calls in a value; None unless it holds calls alone."""
    listed = _parsed(value)
    listed = listed if isinstance(listed, list) else [listed]
    calls = []
    for number, each in enumerate(listed, before + 1):
        call = each if isinstance(each, dict) else {}
        function = call["function"] if isinstance(call.get("function"), dict) else call
        if not isinstance(function.get("name"), str):
            return None
        arguments = next((function[key] for key in ("arguments", "parameters", "args") if function.get(key) is not None), {})
        calls.append({"id": str(call.get("id") or f"call_{number}"), "type": "function", "function": {
            "name": function["name"], "arguments": arguments if isinstance(arguments, str) else json_text(arguments)}})
    return calls or None


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        lines = [line for line in value.splitlines() if line.strip()]
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            return None


def _each(value: Any, count: int) -> list[Any]:
    """The results of `count` calls in one value; the value alone where it is no list of as many."""
    listed = _parsed(value) if count > 1 else None
    if not isinstance(listed, list) or len(listed) != count:
        return [value]
    return [each if isinstance(each, str) else json_text(each) for each in listed]

"""Task `function_call`: the answer calls the right functions with accepted arguments, compared as a syntax tree.

Follows the AST check of the Berkeley Function Calling Leaderboard (ShishirPatil/gorilla, ast_checker.py): every accepted call
is matched by one call with the same function; each argument is among the accepted values, and an argument whose accepted values
include "" may be left out; other arguments are refused. Strings are compared without case, blanks and the punctuation ,./-_*^,
a whole number counts where a float is accepted. call_forms.py reads the calls.
"""

import json
import re
from typing import Any, Literal

from model_ops.tasks.call_forms import Call, calls_in
from model_ops.tasks.item import Item

IGNORED_IN_STRINGS = re.compile(r"[ ,./\-_*^]")


class FunctionCallItem(Item):
    """A question that is answered by function calls."""

    kind: Literal["function_call"] = "function_call"
    accepted: list[dict[str, dict[str, list[Any]]]]
    """For each expected call {function: {argument: [accepted values]}}, as in BFCL's files of answers."""


def score_call(item: FunctionCallItem, text: str) -> float:
    """1.0 if calls and accepted calls match one to one, in any order, else 0.0."""
    calls = calls_in(text, item.tools)
    if len(calls) != len(item.accepted):
        return 0.0
    left = list(item.accepted)
    for call in calls:
        fitting = next((accepted for accepted in left if _fits(call, accepted)), None)
        if fitting is None:
            return 0.0
        left.remove(fitting)
    return 1.0


def accepted_calls(message: dict[str, Any]) -> list[dict[str, dict[str, list[Any]]]]:
    """What FunctionCallItem accepts where an assistant's message is right. Raises ValueError as `calls_as_text` does."""
    calls = map(_call, message.get("tool_calls") or [])
    return [{name: {key: [value] for key, value in arguments.items()}} for name, arguments in calls]


def calls_as_text(message: dict[str, Any]) -> str:
    """An assistant's message as `score_call` reads it: calls in <tool_call> blocks. Calls in the text stay what they are.

    Raises ValueError for arguments that are no JSON object."""
    if not message.get("tool_calls"):
        return message.get("content") or ""
    calls = [_call(call) for call in message["tool_calls"]]
    written = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    return "\n".join(f"<tool_call>{call}</tool_call>" for call in written)


def _call(call: dict[str, Any]) -> Call:
    arguments = call["function"].get("arguments") or {}
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, dict):
        raise ValueError("arguments of a call are a JSON object")
    return Call(call["function"]["name"], arguments)


def _fits(call: Call, accepted: dict[str, dict[str, list[Any]]]) -> bool:
    for name, arguments in accepted.items():
        if _plain_name(name) != _plain_name(call.name):
            return False
        given = set(call.arguments)
        needed = {argument for argument, values in arguments.items() if "" not in values}
        return needed <= given <= set(arguments) and all(
            any(_same(call.arguments[argument], value) for value in arguments[argument]) for argument in given
        )
    return False


def _plain_name(name: str) -> str:
    """Many APIs allow no dot in a function's name, so templates replace it."""
    return name.replace(".", "_")


def _same(given: Any, accepted: Any) -> bool:
    if isinstance(given, bool) or isinstance(accepted, bool):
        return given is accepted
    if isinstance(given, str) and isinstance(accepted, str):
        return _plain_text(given) == _plain_text(accepted)
    if isinstance(given, list | tuple) and isinstance(accepted, list | tuple):
        return len(given) == len(accepted) and all(map(_same, given, accepted))
    if isinstance(given, dict) and isinstance(accepted, dict):
        # inside an object, accepted values are lists as well
        values = {name: value if isinstance(value, list) else [value] for name, value in accepted.items()}
        needed = {name for name, value in values.items() if "" not in value}
        return needed <= set(given) <= set(values) and all(
            any(_same(given[name], value) for value in values[name]) or _same(given[name], accepted[name]) for name in given
        )
    return type(given) in (int, float, type(None)) and type(accepted) in (int, float, type(None)) and given == accepted


def _plain_text(text: str) -> str:
    return IGNORED_IN_STRINGS.sub("", text).lower().replace("'", '"')

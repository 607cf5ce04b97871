"""Calls of tools in the forms that chat templates teach.

    calls_in('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')        # [Call("add", {"a": 1})]
    marked_calls(text, tools)                   # (calls, the text beside them); None where no mark of a call stands

    <tool_call>{"name": NAME, "arguments": {KEY: VALUE}}</tool_call>                                Hermes, Qwen 2.5 and 3
    <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>               Qwen3-Coder, Qwen 3.5
    <|tool_call>call:NAME{KEY:<|"|>TEXT<|"|>,KEY:NUMBER}<tool_call|>                                Gemma 4
    <start_function_call>call:NAME{KEY:<escape>TEXT<escape>}<end_function_call>                     FunctionGemma
    <|tool_call_start|>[NAME(KEY="TEXT")]<|tool_call_end|>                                          LFM2

Values between <parameter> tags have no quotes, so the tool's schema says their types, as in vLLM's parser of that form.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

Tools = Sequence[dict[str, Any]]
FENCE = re.compile(r"```[a-zA-Z_]*\s*\n?(.*?)```", re.DOTALL)
FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)</function>\s*(?=<function=|$)", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*(?=<parameter=|$)", re.DOTALL)
BARE_KEY = re.compile(r"([{,]\s*)([^\s:{},\[\]\"]+)\s*:")
BARE_NONE = re.compile(r"(?<=[:\[,])\s*None\b")


class Call(NamedTuple):
    """A function's name and its arguments."""

    name: str
    arguments: dict[str, Any]


def calls_in(text: str, tools: Tools | None = None) -> list[Call]:
    """The calls that an answer makes, between marks, in JSON or in Python's syntax; [] if it makes none."""
    if (marked := marked_calls(text, tools or ())) is not None:
        return marked[0]
    for part in (text.strip(), *(fence.strip() for fence in FENCE.findall(text))):
        found = _of_json(part) or _of_python(part)
        if found:
            return found
    return []


def marked_calls(text: str, tools: Tools) -> tuple[list[Call], str] | None:
    """(the calls between marks, the text beside them); no calls where one of them cannot be read. None without a mark."""
    for mark, read in FORMS:
        if blocks := mark.findall(text):
            groups = [read(block.strip(), tools) for block in blocks]
            return [call for group in groups for call in group] if all(groups) else [], mark.sub("", text)
    return None


def _of_json(text: str) -> list[Call]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return list(_calls_of(value if isinstance(value, list) else [value]))


def _calls_of(values: list[Any]) -> Iterator[Call]:
    for each in values:
        each = each.get("function", each) if isinstance(each, dict) else {}
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            continue
        arguments = each.get("arguments", each.get("parameters", {}))
        if isinstance(arguments, str):  # OpenAI's form: JSON text
            try:
                arguments = json.loads(arguments) if arguments.strip() else {}
            except (ValueError, RecursionError):
                continue
        if isinstance(arguments, dict):
            yield Call(each["name"], arguments)


def _of_python(text: str) -> list[Call]:
    try:
        tree = ast.parse(text.strip().strip("`"), mode="eval").body
        calls = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
        return [
            Call(ast.unparse(call.func), {word.arg: ast.literal_eval(word.value) for word in call.keywords})
            for call in calls
            if isinstance(call, ast.Call) and not call.args and all(w.arg for w in call.keywords)
        ]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []


def _of_xml(text: str, tools: Tools) -> list[Call]:
    functions = FUNCTION.findall(text)
    beside = [FUNCTION.sub("", text), *(PARAMETER.sub("", body) for _, body in functions)]
    if any(each.strip() for each in beside):
        return []
    about = {function.get("name"): function.get("parameters") for function in (tool.get("function") or tool for tool in tools)}
    schemas = {name: _part(parameters, "properties") for name, parameters in about.items()}
    return [
        Call(name, {key: _typed(value, _part(schemas.get(name), key)) for key, value in PARAMETER.findall(body)})
        for name, body in functions
    ]


def _part(schema: Any, name: str) -> Any:
    """What a schema has under a name; {} where it has nothing, or is none."""
    return schema.get(name, {}) if isinstance(schema, dict) else {}


def _typed(text: str, schema: Any) -> Any:
    """A value without quotes, in the type that its schema names; the text itself where it is of none of them."""
    kinds = _kinds(schema)
    if "null" in kinds and text.strip() in ("null", "None"):
        return None
    if "string" in kinds:
        return text
    for read in (json.loads, ast.literal_eval):  # templates write True and None as Python does
        try:
            value = read(text.strip().lower() if kinds == {"boolean"} else text.strip())
            json.dumps(value, allow_nan=False)
            return value
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    return text


def _kinds(schema: Any) -> set[str]:
    """Names of the types that a schema allows. A schema may be anything: agents bring theirs."""

    def listed(name: str) -> list[Any]:
        return value if isinstance(value := _part(schema, name), list) else [value]

    found = {each for each in listed("type") if isinstance(each, str)}
    found |= {"string"} if any(isinstance(each, str) for each in listed("enum")) else set()
    return found.union(*(_kinds(each) for each in [*listed("anyOf"), *listed("oneOf")] if each and isinstance(each, dict)))


def _of_gemma(quote: str, text: str, _: Tools) -> list[Call]:
    """Text stands between two `quote`, keys have no quotes; the rest is JSON."""
    name, brace, body = text.removeprefix("call:").partition("{")
    parts = enumerate(f"{brace}{body}".split(quote))
    written = [
        json.dumps(part) if place % 2 else BARE_NONE.sub("null", BARE_KEY.sub(r'\1"\2":', part)) for place, part in parts
    ]
    try:
        arguments = json.loads("".join(written))
    except (ValueError, RecursionError):
        return []
    return [Call(name.strip(), arguments)] if text.startswith("call:") and isinstance(arguments, dict) else []


FORMS: list[tuple[re.Pattern[str], Callable[[str, Tools], list[Call]]]] = [
    (
        re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL),
        lambda block, tools: _of_xml(block, tools) if block.startswith("<function=") else _of_json(block),
    ),
    (re.compile(r"(<function=.*</function>)\s*(?:</tool_call>)?", re.DOTALL), _of_xml),  # its first mark is often left out
    (re.compile(r"<\|tool_call>(.*?)(?:<tool_call\|>|$)", re.DOTALL), partial(_of_gemma, '<|"|>')),
    (re.compile(r"<start_function_call>(.*?)(?:<end_function_call>|$)", re.DOTALL), partial(_of_gemma, "<escape>")),
    (
        re.compile(r"<\|tool_call_start\|>(.*?)(?:<\|tool_call_end\|>|$)", re.DOTALL),
        lambda block, _: _of_json(block) or _of_python(block),
    ),
]
"""What stands between the marks of a form, and its reader: [] for what is no call."""

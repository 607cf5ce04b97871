"""Calls of tools in the forms that chat templates teach.

    calls_in('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')        # [Call("add", {"a": 1})]
    marked_calls(text, tools)                   # (calls, the text beside them); None where no mark of a call stands

    <tool_call>{"name": NAME, "arguments": {KEY: VALUE}}</tool_call>                                Hermes, Qwen 2.5 and 3
    <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>               Qwen3-Coder, Qwen 3.5
    <|tool_call>call:NAME{KEY:<|"|>TEXT<|"|>,KEY:NUMBER}<tool_call|>                                Gemma 4
    <start_function_call>call:NAME{KEY:<escape>TEXT<escape>}<end_function_call>                     FunctionGemma
    <|tool_call_start|>[NAME(KEY="TEXT")]<|tool_call_end|>                                          LFM2
    [TOOL_CALLS][{"name": NAME, "arguments": {KEY: VALUE}}] and [TOOL_CALLS]NAME[ARGS]{KEY: VALUE}  Mistral
    <|python_tag|>{"name": NAME, "parameters": {KEY: VALUE}}                                        Llama 3

Values between <parameter> tags have no quotes, so the tool's schema says their types, as in vLLM's parser of that form."""

import ast
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from model_ops.rendering import server_messages
from model_ops.tasks.code_fences import code_blocks, json_values

Tools = Sequence[dict[str, Any]]
DECODER = json.JSONDecoder()
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
    if calls := bare_calls(text):
        return calls
    if calls := [call for value in json_values(text, DECODER) for call in _calls_of(value)]:
        return calls
    return next((calls for block in code_blocks(text) if (calls := _of_python(block.code))), [])


def bare_calls(text: str) -> list[Call]:
    """The calls of an answer that is nothing else, in JSON or in Python's syntax; [] if it is another text."""
    return _of_json(text) or ([] if text.lstrip().startswith("```") else _of_python(text))


def marked_calls(text: str, tools: Tools) -> tuple[list[Call], str] | None:
    """(the calls between marks, the text beside them); no calls where one of them cannot be read. None without a mark."""
    first = [(each.start(), form) for form, (mark, _, _) in enumerate(FORMS) if (each := mark.search(text))]
    if not first or _json_end(text, 0) == len(text) or bare_calls(text):
        return None  # a mark in a string is none
    start, form = min(first)
    if any(block.start <= start < block.end and text[block.start : start].strip() for block in code_blocks(text)):
        return None
    mark, end, read = FORMS[form]
    blocks = list(_blocks(text, mark, end))
    groups = [read(block.strip(), tools) for block, _, _ in blocks]
    ends = [0, *(place for _, _, place in blocks)]
    beside = [text[begin:start] for begin, (_, start, _) in zip(ends, [*blocks, ("", len(text), 0)], strict=True)]
    return [call for group in groups for call in group] if all(groups) else [], "".join(beside)


def _blocks(text: str, mark: re.Pattern[str], end: re.Pattern[str] | None) -> Iterator[tuple[str, int, int]]:
    """(what stands between marks, where the first begins, where the last ends)."""
    place = 0
    while block := mark.search(text, place):
        value_end = _json_end(text, block.start(1)) if end else 0
        closing = end.match(text, value_end) if end and value_end else None
        place = closing.end() if closing else block.end()
        yield text[block.start(1) : value_end if closing else block.end(1)], block.start(), place


def _json_end(text: str, place: int) -> int:
    """Where the JSON value at a place ends, blanks around it included; 0 without one."""
    try:
        end = DECODER.raw_decode(text, _value_from(text, place))[1]
    except (ValueError, RecursionError):
        return 0
    return _value_from(text, end)


def _value_from(text: str, place: int) -> int:
    """The first place from `place` on where neither a blank nor a semicolon stands."""
    while place < len(text) and (text[place].isspace() or text[place] == ";"):
        place += 1
    return place


def _of_json(text: str) -> list[Call]:
    """The calls of one JSON value, or of several that blanks or semicolons separate."""
    values, place, text = [], 0, text.strip()
    try:
        while place < len(text):
            value, place = DECODER.raw_decode(text, place)
            values.append(value)
            place = _value_from(text, place)
    except (ValueError, RecursionError):
        return []
    return [call for value in values for call in _calls_of(value)]


def _of_mistral(text: str, _: Tools) -> list[Call]:
    """NAME[ARGS]{...} for each call, or a list in JSON."""
    named = list(re.finditer(r"(?:\[TOOL_CALLS\])?\s*([\w.-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]", text))
    if not named:
        return _of_json(text)
    calls: list[Call] = []
    place = 0
    for each in named:
        if each.start() >= place:  # else a mark in a string
            place = _json_end(text, each.end())
            calls += _calls_of({"name": each[1], "arguments": text[each.end() : place]}) if place else []
    return calls if place == len(text) else []


def _calls_of(value: Any) -> Iterator[Call]:
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):  # OpenAI's message
        value = value["tool_calls"]
    for each in value if isinstance(value, list) else [value]:
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

    kinds = {each for each in listed("type") if isinstance(each, str)}
    kinds |= {"string"} if any(isinstance(each, str) for each in listed("enum")) else set()
    return kinds.union(*(_kinds(each) for each in [*listed("anyOf"), *listed("oneOf")] if each and isinstance(each, dict)))


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


FORMS: list[tuple[re.Pattern[str], re.Pattern[str] | None, Callable[[str, Tools], list[Call]]]] = [
    (
        re.compile(r"<tool_call>(\s*<function=.*?</function>\s*|.*?)(?:</tool_call>|$)", re.DOTALL),
        re.compile(r"</tool_call>|$"),
        lambda block, tools: _of_xml(block, tools) if block.startswith("<function=") else _of_json(block),
    ),
    (
        re.compile(r"(<function=.*</function>)\s*(?:</tool_call>)?", re.DOTALL),
        None,
        _of_xml,
    ),  # its first mark is often left out
    (re.compile(r'<\|tool_call>((?:<\|"\|>.*?<\|"\|>|.)*?)(?:<tool_call\|>|$)', re.DOTALL), None, partial(_of_gemma, '<|"|>')),
    (
        re.compile(r"<start_function_call>((?:<escape>.*?<escape>|.)*?)(?:<end_function_call>|$)", re.DOTALL),
        None,
        partial(_of_gemma, "<escape>"),
    ),
    (
        re.compile(r"<\|tool_call_start\|>(.*?)(?:<\|tool_call_end\|>|$)", re.DOTALL),
        re.compile(r"<\|tool_call_end\|>|$"),
        lambda block, _: bare_calls(block),
    ),
    (re.compile(r"(?:\A\s*\[TOOL_CALLS\]|\[TOOL_CALLS\](?=\s*(?:\[\s*\{|\{|[\w.-]+\[)))(.*)", re.DOTALL), None, _of_mistral),
    (re.compile(r"\A\s*<\|python_tag\|>(.*)", re.DOTALL), None, lambda block, _: bare_calls(block)),
]
"""What stands between the marks of a form, the mark that follows JSON, and the reader: [] for what is no call."""


UNREADABLE_CALL = "a tool call that cannot be read"


class UnusableAnswer(Exception):
    """An answer that is no message to learn; the text is a fixed reason, by which such answers are counted."""

    message: dict[str, Any] | None = None
    """Where the reason is UNREADABLE_CALL: the message with its calls left in its content."""


def message_of(text: str, prompt: str, tools: Sequence[dict[str, Any]] | None, specials: Collection[str]) -> dict[str, Any]:
    """The message in the dataset's form. text: without its end of turn. specials: the tokenizer's special tokens. Raises
    UnusableAnswer for an answer that is empty, ends within its reasoning, holds a call that cannot be read, or holds a special
    token, which would become one in the rows that learn it."""
    thought, said = _apart(text, prompt)
    try:
        calls, content = _called(said, tools) if tools else ([], said)
        written = [_written(call, number) for number, call in enumerate(calls)]
    except UnusableAnswer as error:
        error.message = _message(thought, said)
        raise
    if any(mark in part for mark in specials if mark for part in (thought, content)):
        raise UnusableAnswer("a special token in the answer")
    if not content.strip() and not calls:
        raise UnusableAnswer("empty")
    message = _message(thought, content)
    return {**message, "tool_calls": written} if written else message


def _written(call: Call, number: int) -> dict[str, Any]:
    """A call in OpenAI's form."""
    try:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        f"{call.name}{arguments}".encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UnusableAnswer(UNREADABLE_CALL) from error
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _message(thought: str, content: str) -> dict[str, Any]:
    reasoning = {"reasoning_content": thought.strip()} if thought.strip() else {}
    return {"role": "assistant", "content": content.strip(), **reasoning}


def _apart(text: str, prompt: str) -> tuple[str, str]:
    """(reasoning, what follows it)."""
    opened = server_messages.block_at_end(prompt)
    bare = text.lstrip()
    marks = (
        [(opened.begin, opened.end)]
        if opened is not None and opened.is_open
        else [(begin, end) for begin, end in server_messages.MARKS if bare.startswith(begin)]
    )
    if not marks:
        return "", text
    begin, end = marks[0]
    thought, closed, rest = bare.removeprefix(begin).partition(end)
    if not closed:
        raise UnusableAnswer("no answer after its reasoning")
    return thought, rest


def _called(text: str, tools: Sequence[dict[str, Any]]) -> tuple[list[Call], str]:
    """(calls, the content beside them)."""
    if (marked := marked_calls(text, tools)) is not None:
        if not marked[0]:
            raise UnusableAnswer(UNREADABLE_CALL)
        return marked
    offered = {(tool.get("function") or tool).get("name") for tool in tools}
    calls = bare_calls(text)
    return (calls, "") if calls and all(call.name in offered for call in calls) else ([], text)

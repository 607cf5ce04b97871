"""Turns records of evaluation files into items that models are asked, scored by kind of task. `task: auto` takes the kind that
a format is known for, and asks nothing of records without what it needs. A kind that the recipe names must fit every record.

    kind           needs of a record
    number         an answer that is one value (model_ops/tasks/number_value.py)
    exact          an answer
    regex          pattern | regex
    contains, contains_any    answers: texts of which the share, or one, occurs; or an answer
    json_schema    json_schema | schema: an object, or its JSON text
    function_call  function: schemas; accepted calls in ground_truth, or in the file `answers` under the same id (BFCL)
    unit_tests     test | tests: Python source; optionally entry_point, and prompt as the beginning of the code
    ifeval         instruction_id_list and kwargs, as in the published data
    judge, refuses, complies, record    nothing but the prompt
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from pydantic import ValidationError

from model_ops.jobs import counted
from model_ops.tasks import (
    CompliesItem,
    ContainsItem,
    ExactItem,
    FunctionCallItem,
    InstructionsItem,
    Item,
    JsonItem,
    JudgedItem,
    NumberItem,
    RecordItem,
    RefusesItem,
    RegexItem,
    UnitTestsItem,
    final_number,
    running_tests,
)
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
    *PROMPTS,
    *SYSTEMS,
    *CONTEXTS,
    *CHOICES,
    *ANSWERS,
    "messages",
    "turns",
    "tools",
    "function",
    "test",
    "tests",
    "entry_point",
    "pattern",
    "regex",
    "json_schema",
    "schema",
    "instruction_id_list",
    "kwargs",
    "reward_model",
    "chosen",
    "rejected",
}
MOST_KEYS = 12


def messages_of(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
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


Task = Literal[
    "auto",
    "none",
    "number",
    "exact",
    "regex",
    "contains",
    "contains_any",
    "json_schema",
    "function_call",
    "ifeval",
    "refuses",
    "complies",
    "unit_tests",
    "judge",
    "record",
]

OF_FORMATS: Mapping[str, Task] = {"gsm8k": "number", "humaneval": "unit_tests", "bfcl": "function_call"}
"""The kind of task that a format is known for."""

SCHEMA_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
"""BFCL's names of types that JSON schema does not know; None: any type."""

WITHOUT_ANSWERS = ("irrelevance", "relevance")
"""Beginnings of the ids of BFCL's items of which no call, or any call, is right."""

CODE_REQUEST = (
    "Complete this Python function. Reply with the whole function, with its imports, in one code block and nothing "
    "else.\n\n```python\n{prompt}\n```"
)
"""How a task of code is asked."""


class EvalTaskError(Exception):
    """A record lacks what its kind of task needs; the message names file and record."""


def task_item(
    suite: str,
    task: Task,
    kind: str,
    record: dict[str, Any],
    item_id: str,
    prompt: str,
    answer: str | None,
    place: str,
    accepted: Any = None,
) -> Item | None:
    """The item of one record; None if nothing is asked. kind: the record's format. accepted: BFCL's calls from `answers`.
    Raises EvalTaskError if the recipe's `task` does not fit the record."""
    asked = OF_FORMATS.get(kind, "none") if task == "auto" else task
    if asked == "none":
        return None
    shared = {"suite": suite, "item_id": item_id, "messages": conversation(record, prompt)}
    try:
        return _BUILDERS[asked](shared, record, prompt, answer, accepted)
    except (ValidationError, EvalTaskError) as error:
        if task == "auto" and not isinstance(error, ValidationError):
            return None
        said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise EvalTaskError(f"{place}: task {asked} {said.removeprefix('Value error, ')}") from error


def _number(shared: dict, record: dict, prompt: str, answer: str | None, accepted: Any) -> Item:
    if answer is None or final_number(answer) is None:
        raise EvalTaskError(
            'needs an answer that is a number: alone ("18", "4/7", "50%"), after "####" or "answer:", or in \\boxed{}'
        )
    return NumberItem(**shared, answer=answer)


def _exact(shared: dict, record: dict, prompt: str, answer: str | None, accepted: Any) -> Item:
    if answer is None:
        raise EvalTaskError("needs an answer")
    return ExactItem(**shared, answer=answer)


def _regex(shared: dict, record: dict, prompt: str, answer: str | None, accepted: Any) -> Item:
    return RegexItem(**shared, pattern=_text(record, "pattern", "regex"))


def _contains(shared: dict, record: dict, prompt: str, answer: str | None, accepted: Any, one_is_enough: bool = False) -> Item:
    texts = record.get("answers") or ([answer] if answer else [])
    if not isinstance(texts, list) or not texts or not all(map(_is_text, texts)):
        raise EvalTaskError("needs `answers`, a list of texts, or an answer")
    return ContainsItem(**shared, answers=texts, one_is_enough=one_is_enough)


def _json_schema(shared: dict, record: dict, prompt: str, answer: str | None, accepted: Any) -> Item:
    schema = record.get("json_schema", record.get("schema"))
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise EvalTaskError("needs `json_schema`, and its text is not JSON") from error
    if not isinstance(schema, dict | bool):
        raise EvalTaskError("needs `json_schema`, an object")
    return JsonItem(**shared, json_schema=schema)


def _function_call(shared: dict, record: dict, prompt: str, answer: str | None, accepted: Any) -> Item:
    functions, calls = record.get("function", record.get("tools")), record.get("ground_truth", accepted)
    prefix = shared["item_id"].removeprefix("live_").partition("_")[0]
    if "initial_config" in record:
        raise EvalTaskError("is one of BFCL's items of several turns, whose simulated services are not run here")
    if prefix in WITHOUT_ANSWERS and calls is None:  # BFCL publishes none for them
        calls = []
    functions = [functions] if isinstance(functions, dict) else functions
    if not isinstance(functions, list) or not functions or not all(isinstance(each, dict) for each in functions):
        raise EvalTaskError("needs `function`, the schemas of the functions")
    if not isinstance(calls, list):
        raise EvalTaskError("needs `ground_truth`, the accepted calls: in the record, or in the file that `answers` names")
    tools = [
        each if each.get("type") == "function" else {"type": "function", "function": _json_types(each)} for each in functions
    ]
    turns = record.get("question")
    first = turns[0] if isinstance(turns, list) and turns else None
    messages = first if isinstance(first, list) else shared["messages"]
    return FunctionCallItem(**{**shared, "messages": messages}, tools=tools, accepted=calls, any_call=prefix == "relevance")


def _json_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_json_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    typed = {name: _json_types(value) for name, value in schema.items()}
    if isinstance(typed.get("type"), str) and typed["type"] in SCHEMA_TYPES:
        known = SCHEMA_TYPES[typed["type"]]
        return {**typed, "type": known} if known else {name: value for name, value in typed.items() if name != "type"}
    return typed


def _unit_tests(shared: dict, record: dict, prompt: str, answer: str | None, accepted: Any) -> Item:
    entry_point = record.get("entry_point") or ""
    if not isinstance(entry_point, str) or (entry_point and not entry_point.isidentifier()):
        raise EvalTaskError("has an `entry_point` that is no name of a function")
    try:
        test = running_tests(_text(record, "test", "tests"), entry_point)
    except ValueError as error:
        raise EvalTaskError(str(error)) from error
    if not entry_point:  # a task in words
        return UnitTestsItem(**shared, test=test)
    messages = conversation({**record, "messages": None, "prompt": None}, CODE_REQUEST.format(prompt=prompt.rstrip()))
    return UnitTestsItem(**{**shared, "messages": messages}, code=prompt, test=test, entry_point=entry_point)


def _ifeval(shared: dict, record: dict, prompt: str, answer: str | None, accepted: Any) -> Item:
    names, given = (record.get(name) or [] for name in ("instruction_id_list", "kwargs"))
    return InstructionsItem(**shared, instruction_id_list=names, kwargs=given)


def _judge(shared: dict, record: dict, prompt: str, answer: str | None, accepted: Any) -> Item:
    return JudgedItem(**shared, reference=answer or "")


def _text(record: dict, *names: str) -> str:
    text = next((record[name] for name in names if isinstance(record.get(name), str) and record[name].strip()), None)
    if text is None:
        raise EvalTaskError(f"needs `{names[0]}`, a text; its keys are {', '.join(record) or 'none'}")
    return text


_BUILDERS: dict[str, Callable[..., Item]] = {
    "number": _number,
    "exact": _exact,
    "regex": _regex,
    "contains": _contains,
    "contains_any": partial(_contains, one_is_enough=True),
    "json_schema": _json_schema,
    "function_call": _function_call,
    "unit_tests": _unit_tests,
    "ifeval": _ifeval,
    "refuses": lambda shared, *_: RefusesItem(**shared),
    "complies": lambda shared, *_: CompliesItem(**shared),
    "judge": _judge,
    "record": lambda shared, record, *_: RecordItem(
        **shared, record={name: value for name, value in record.items() if name != "messages"}
    ),
}

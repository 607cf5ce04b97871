"""The assistant's message in what a model said, as a server parses it: reasoning, tool calls, content.

Reasoning stands between the marks of model_ops.rendering.thought_marks; a prompt may have opened its block. Calls are read
where the request offered tools: between the marks of call_forms.py, and from an answer that is nothing but calls of offered
tools, in JSON or in Python's syntax.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any

from model_ops.rendering import thought_marks
from model_ops.tasks.call_forms import Call, bare_calls, marked_calls

UNREADABLE_CALL = "a tool call that cannot be read"


class UnusableAnswer(Exception):
    """An answer that is no message to learn; the text is a fixed reason, by which such answers are counted."""

    message: dict[str, Any] | None = None
    """Where the reason is UNREADABLE_CALL: the message with its calls left in its content."""


def message_of(text: str, prompt: str, tools: Sequence[dict[str, Any]] | None, specials: Collection[str]) -> dict[str, Any]:
    """The message in the dataset's form. text: without its end of turn. specials: the tokenizer's special tokens.

    Raises UnusableAnswer for an answer that is empty, ends within its reasoning, holds a call that cannot be read, or holds a
    special token, which would become one in the rows that learn it.
    """
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
    """A call in OpenAI's form. Raises UnusableAnswer for arguments that JSON does not know, as a set of Python, or that no
    tokenizer takes: half of a surrogate pair."""
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
    opened = thought_marks.block_at_end(prompt)
    bare = text.lstrip()
    marks = (
        [(opened.begin, opened.end)]
        if opened is not None and opened.is_open
        else [(begin, end) for begin, end in thought_marks.MARKS if bare.startswith(begin)]
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

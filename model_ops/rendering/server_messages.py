"""Messages in the form in which a server hands them to a chat template, and the marks of a thought in an answer.

    server_messages(messages, arguments="object", has_developer=False, takes_parts=False)

As vLLM 0.32 (vllm/renderers/chat_utils.py) and SGLang do: arguments of tool calls become objects, absent content an empty text,
unknown keys go, and parts of text are joined where the template takes only text; where it takes parts, plain texts become
parts. Where a template knows no role `developer`, vLLM (renderers/hf.py) joins these and all system messages into one at the
beginning."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

MARKS = (
    ("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<thought>", "</thought>"), ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"), ("<mm:think>", "</mm:think>"), ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"), ("<|channel>thought", "<channel|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)  # fmt: skip
"""(begin, end) in the chat templates of public models."""


@dataclass(frozen=True)
class PromptBlock:
    """A block of reasoning at the end of a prompt."""

    start: int
    """Position of its first character."""
    is_open: bool
    begin: str
    end: str
    """begin, end: its marks."""
    space: str = ""
    """The white space after the beginning mark of an open block."""


def block_at_end(prompt: str) -> PromptBlock | None:
    """The block of reasoning with which a prompt ends; None if it ends otherwise."""
    text = prompt.rstrip()
    for begin, end in MARKS:
        if text.endswith(begin):
            return PromptBlock(len(text) - len(begin), True, begin, end, prompt[len(text) :])
        if text.endswith(end):
            inside = text[: -len(end)].rstrip()
            return PromptBlock(len(inside) - len(begin) if inside.endswith(begin) else len(text) - len(end), False, begin, end)
    return None


def without_block(text: str) -> str:
    """The text without a block of reasoning, or the end mark of one, at its beginning."""
    bare = text.lstrip()
    for begin, end in MARKS:
        if bare.startswith(begin) and end in bare:
            return bare.partition(end)[2].lstrip()
        if bare.startswith(end):
            return bare[len(end) :].lstrip()
    return text


def opens_block(text: str) -> bool:
    """Whether a text begins with a block of reasoning that it does not end."""
    bare = text.lstrip()
    return any(bare.startswith(begin) and end not in bare for begin, end in MARKS)


def empty_block(text: str) -> tuple[int, int] | None:
    """(first character inside, first character of the end mark) of an empty block of reasoning at the beginning of a text."""
    for begin, end in MARKS:
        block = re.match(rf"\s*{re.escape(begin)}(\s*){re.escape(end)}", text)
        if block:
            return block.span(1)
    return None


THOUGHTS = ("reasoning", "reasoning_content", "thinking")
"""Keys of a message that hold its reasoning, in order of preference. Templates read different ones, so all are filled."""

LEARNT_REASONING = "learnt_reasoning"
"""Key of the reasoning that a model gave with an answer and that the later requests of the conversation did not repeat: it is
learnt with the answer, and it is no part of the later context."""

LEARNT_CUT = "learnt_cut"
"""Key of an answer that ended at the token limit: the model did not say an end of turn, so none is learnt."""

Arguments = Literal["object", "text"]


def server_messages(
    messages: Sequence[dict[str, Any]], arguments: Arguments, has_developer: bool, takes_parts: bool
) -> list[dict[str, Any]]:
    """The messages as a template receives them. arguments: the form of tool calls' arguments. has_developer: whether the
    template knows the role `developer`. takes_parts: whether the template takes a list of parts as content. Raises ValueError
    for a part that is not text, where the template takes only text."""
    rendered = [_message(message, arguments, has_developer, takes_parts) for message in messages]
    renamed = not has_developer and any(message.get("role") == "developer" for message in messages)
    return _with_one_system(rendered) if renamed else rendered


def as_read(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages in one spelling: those that a template reads as the same are equal. Raises ValueError for a part that is not
    text."""
    return server_messages(messages, "object", True, False)


def reasoning_of(message: dict[str, Any]) -> str | None:
    """The reasoning in a message; None without one."""
    for name in THOUGHTS:
        if isinstance(message.get(name), str) and message[name].strip():
            return message[name]
    return None


def without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """The message without its reasoning."""
    return {name: value for name, value in message.items() if name not in (*THOUGHTS, LEARNT_REASONING)}


def with_reasoning(message: dict[str, Any], reasoning: str) -> dict[str, Any]:
    """The message with this reasoning."""
    return {**without_reasoning(message), **dict.fromkeys(THOUGHTS, reasoning)}


def says_nothing(message: dict[str, Any]) -> bool:
    """Whether an assistant message has neither content nor a tool call nor reasoning."""
    spoken = (message.get(part) for part in ("content", "tool_calls", "function_call", LEARNT_REASONING, *THOUGHTS))
    return not any(part.strip() if isinstance(part, str) else part for part in spoken)


def called_functions(message: dict[str, Any]) -> list[str]:
    """Names of the functions that a message calls."""
    return [str(call["function"].get("name")) for call in _calls(message)]


def unreadable_arguments(messages: Sequence[dict[str, Any]]) -> int:
    """Number of tool calls whose arguments are not a JSON object. They stay text."""
    return sum(
        not isinstance(_read(function.get("arguments")), dict)
        for message in messages
        for call in _calls(message)
        if (function := call["function"])
    )


def _message(message: dict[str, Any], arguments: Arguments, has_developer: bool, takes_parts: bool) -> dict[str, Any]:
    role = message.get("role")
    if role == "developer" and not has_developer:
        role = "system"
    fields: dict[str, Any] = {
        "role": "tool" if role == "function" else role,
        "content": _content(message.get("content"), takes_parts and role != "tool"),
    }
    if role == "assistant":
        calls = [
            {**call, "function": {**call["function"], "arguments": _written(call["function"].get("arguments"), arguments)}}
            for call in _calls(message)
        ]
        if calls:
            fields["tool_calls"] = calls
        reasoning = reasoning_of(message)
        if reasoning is not None:
            fields.update(dict.fromkeys(THOUGHTS, reasoning))
    for name in ("tool_call_id", "name"):
        if isinstance(message.get(name), str):
            fields[name] = message[name]
    return fields


def _with_one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with all system messages as one text at the beginning."""
    said = [message for message in messages if message["role"] == "system"]
    if len(said) == 1 and messages[0]["role"] == "system":
        return messages
    texts = [_content(message["content"], False) for message in said]
    return [
        {"role": "system", "content": "\n\n".join(filter(None, texts))},
        *(message for message in messages if message["role"] != "system"),
    ]


def _content(content: Any, takes_parts: bool) -> Any:
    if takes_parts:
        return [{"type": "text", "text": content}] if isinstance(content, str) else [] if content is None else content
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    texts = [text for text in parts if isinstance(text, str)]
    if len(texts) < len(content):
        raise ValueError("a part of the content is not text")
    return "\n".join(texts)


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Tool calls in today's form, with an object `function`."""
    given = message.get("tool_calls")
    if not given and isinstance(message.get("function_call"), dict):
        given = [{"type": "function", "function": message["function_call"]}]
    calls = []
    for call in given if isinstance(given, list) else []:
        if not isinstance(call, dict):
            raise ValueError("a tool call is not an object")
        function = call.get("function")
        function = function if isinstance(function, dict) else call
        calls.append(
            {
                "type": "function",
                **{name: call[name] for name in ("id", "type") if isinstance(call.get(name), str)},
                "function": {name: value for name, value in function.items() if name in ("name", "arguments")},
            }
        )
    return calls


def _read(arguments: Any) -> Any:
    """Arguments as an object; as they are if they are no JSON object."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, str):
        try:
            read = json.loads(arguments)
        except ValueError:
            return arguments
        return read if isinstance(read, dict) else arguments
    return arguments


def _written(arguments: Any, form: Arguments) -> Any:
    if form == "object":
        return _read(arguments)
    return arguments if isinstance(arguments, str) and arguments.strip() else json.dumps(_read(arguments), ensure_ascii=False)

"""The learnt part of a conversation: for each answer, the server's prompt and the text to generate after it.

    turns = learnt_turns(row, template, thinking="keep")
    turns[0].context, turns[0].answer          # "...<|im_start|>assistant\\n", "It is 4.<|im_end|>"

The context is the template's rendering of the messages before the answer with its generation prompt. If the rendering with the
answer begins with the context, the rest is what the model has to say. Some templates open (or skip) a block of reasoning in the
generation prompt that they leave out when they render an answer: the model has to close an open block, with the row's
reasoning inside it, before it answers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from model_ops.rendering.chat_template import ChatTemplate, Unrenderable, continues, shared_beginning
from model_ops.rendering.row import Row, request_of
from model_ops.rendering.server_messages import (
    LEARNT_CUT,
    LEARNT_REASONING,
    block_at_end,
    called_functions,
    empty_block,
    opens_block,
    reasoning_of,
    says_nothing,
    with_reasoning,
    without_block,
    without_reasoning,
)

Thinking = Literal["keep", "strip", "empty"]

LEFT_OUT = "the chat template leaves out the tool calls"


@dataclass(frozen=True)
class LearntTurn:
    """One answer: index of its message, the server's prompt before it, and the text to generate, end of turn included."""

    message: int
    context: str
    answer: str


def learnt_turns(row: Row, template: ChatTemplate, thinking: Thinking = "keep") -> list[LearntTurn]:
    """The answers with weight 1. Raises Unrenderable for a row that cannot be taught."""
    return [_learnt(row, index, template, thinking) for index in row.learnt_messages]


def _learnt(row: Row, index: int, template: ChatTemplate, thinking: Thinking) -> LearntTurn:
    message = row.messages[index]
    row = replace(row, request=request_of(row, index))
    if message.get("weight") not in (None, 0, 1):
        raise Unrenderable("an assistant message has a weight that is neither 0 (context) nor 1 (learnt)")
    if says_nothing(message):
        raise Unrenderable("an assistant message has neither content nor a tool call")
    reasoning = None if thinking == "strip" else message.get(LEARNT_REASONING) or reasoning_of(message)
    bare = without_reasoning(message)
    said = with_reasoning(bare, reasoning) if reasoning else bare
    prompt, calls = template.prompt(row, index), called_functions(message)
    if continues(row, index):
        answer = _continuation(prompt, row, index, said, template)
    else:
        rendered = template.through(row, index, said)
        _refuse_fewer_calls(row, index, said, rendered, template)
        answer = _after(prompt, rendered, reasoning, template, row.messages[: index + 1])
    if reasoning and reasoning.strip() not in answer and (inside := empty_block(answer)):
        answer = f"{answer[: inside[0]]}{reasoning.strip()}{answer[inside[1] :]}"  # written only in the middle of a tool loop
    if (
        thinking == "empty"
        and not reasoning
        and template.reasoning_block
        and block_at_end(prompt) is None
        and without_block(answer) == answer
    ):
        answer = "".join(template.reasoning_block) + answer
    _refuse_loss(answer, message, calls, reasoning)
    end, eos = template.end_of_turn(bool(calls)), template.tokenizer.eos_token
    if message.get(LEARNT_CUT):
        _refuse_cut_calls(message, calls)
        return LearntTurn(index, prompt, end.removed(answer, eos))
    return LearntTurn(index, prompt, end.applied(answer, eos))


def _continuation(prompt: str, row: Row, index: int, said: dict[str, Any], template: ChatTemplate) -> str:
    """The text to generate to continue the message before: the rest of the rendering of both as one message."""
    begun, rest = row.messages[index - 1].get("content"), said.get("content")
    if not isinstance(begun, str) or not isinstance(rest, str) or called_functions(said):
        raise Unrenderable("an answer that continues a message is not text")
    rendered = template.through(row, index - 1, {**said, "content": begun + rest})
    if not rendered.startswith(prompt):
        raise Unrenderable("the chat template does not continue a message as it begins it")
    return rendered[len(prompt) :]


def _after(
    prompt: str, rendered: str, reasoning: str | None, template: ChatTemplate, messages: Sequence[dict[str, Any]]
) -> str:
    """The text to generate so that the server parses the rendered answer."""
    if rendered.startswith(prompt):
        return rendered[len(prompt) :]
    block = block_at_end(prompt)
    if block is not None:
        rest = _after_header(prompt[: block.start], rendered, messages)
        if rest is not None and not block.is_open:
            return without_block(rest)
        if rest is not None and rest.startswith(block.begin):  # the same block with other white space
            return _without_shared_space(rest[len(block.begin) :], block.space)
        if rest is not None and rest.lstrip().startswith(block.end):
            return (reasoning or "") + rest
        if rest is not None:
            end = f"\n{block.end}\n\n" if "\n" in block.space else block.end
            return f"{reasoning or ''}{end}{rest.lstrip()}"
    stripped = prompt.rstrip()
    if rendered.startswith(stripped):
        return _without_shared_space(rendered[len(stripped) :], prompt[len(stripped) :])
    rest = _after_header(prompt, rendered, messages)
    if rest is not None:
        return rest
    return _after_words(prompt, rendered, reasoning, template)


def _after_header(header: str, rendered: str, messages: Sequence[dict[str, Any]]) -> str | None:
    """The text after the header of the answer; None if it is not found."""
    if rendered.startswith(header):
        return rendered[len(header) :]
    mark = max(header.rfind(opening) for opening in ("<", "["))
    place = rendered.rfind(header[mark:]) if mark >= 0 else -1
    if place < 0:
        return None
    rest = rendered[place + len(header) - mark :]
    said = _said(messages[-2]) if len(messages) > 1 else ""
    return rest if said and (said not in rest or said in _said(messages[-1])) else None


def _said(message: dict[str, Any]) -> str:
    return message["content"].strip() if isinstance(message.get("content"), str) else ""


def _after_words(prompt: str, rendered: str, reasoning: str | None, template: ChatTemplate) -> str:
    """The text to generate if the generation prompt begins the reasoning in words (Apriel)."""
    shared = shared_beginning(prompt, rendered)
    if template.reasoning_block is None or not template.reasoning_block[1].strip() or not shared.endswith(("\n", ">", "]")):
        raise Unrenderable("the chat template's generation prompt is not how it begins an answer")
    rest, end = rendered[len(shared) :], template.reasoning_block[1]
    answer = rest.partition(end)[2] if reasoning and end in rest else rest
    return f"{reasoning or ''}{end}{answer}"


def _refuse_loss(answer: str, message: dict[str, Any], calls: list[str], reasoning: str | None) -> None:
    """Raises Unrenderable if the template leaves out the answer's tool calls, or what an answer without calls says."""
    if any(name not in answer for name in calls):
        raise Unrenderable(LEFT_OUT)
    content = message.get("content")
    if isinstance(content, str) and opens_block(content):
        raise Unrenderable("an answer begins a block of reasoning and does not end it")
    if not calls and isinstance(content, str) and without_block(content).strip() not in answer:
        raise Unrenderable("the chat template leaves out the answer's content")
    if not calls and not content and (reasoning or "").strip() not in answer.strip():
        raise Unrenderable("an answer holds only reasoning, which the chat template does not write")
    if not calls and not content and not reasoning:
        raise Unrenderable("an assistant message has neither content nor a tool call")


def _refuse_fewer_calls(row: Row, index: int, said: dict[str, Any], rendered: str, template: ChatTemplate) -> None:
    """Raises Unrenderable if the template writes only some of an answer's calls, as gpt-oss's does (the first one alone): then
    the answer without one of them is rendered the same."""
    calls = said.get("tool_calls")
    if not isinstance(calls, list) or len(calls) < 2:
        return
    for place in range(len(calls)):
        if template.through(row, index, {**said, "tool_calls": calls[:place] + calls[place + 1 :]}) == rendered:
            raise Unrenderable(LEFT_OUT)


def _refuse_cut_calls(message: dict[str, Any], calls: list[str]) -> None:
    """Raises Unrenderable if nobody can say where in the rendering an answer was cut."""
    if calls or not message.get("content"):
        raise Unrenderable("an answer was cut at the token limit before its content")


def _without_shared_space(text: str, space: str) -> str:
    """The text without the white space that the prompt already has."""
    return text[len(shared_beginning(text, space)) :]

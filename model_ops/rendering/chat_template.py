"""A tokenizer's chat template, rendered as a server renders it.

    template = ChatTemplate.of(tokenizer)                        # ModelError without a template
    template.prompt(row, 3)                                      # text before the answer that is message 3
    template.through(row, 3)                                     # text up to and including message 3

The request's own chat_template_kwargs, documents, reasoning_effort and response_format are given to the template, as vLLM does
(vllm/entrypoints/openai/chat_completion/protocol.py, build_chat_params). A template that prints a date prints the row's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import jinja2
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from model_ops.jobs import ModelError
from model_ops.rendering.row import Row
from model_ops.rendering.server_messages import MARKS, Arguments, server_messages, with_reasoning


@dataclass(frozen=True)
class EndOfTurn:
    """How a chat template ends an answer."""

    cut: str
    """Text to remove from the end of an answer."""
    added: str
    """Text to append, unless a special token ends the answer."""
    specials: tuple[str, ...]

    def applied(self, answer: str, eos: str | None) -> str:
        """The answer up to its end of turn. A server stops at the first eos, so nothing after it is learnt."""
        if self.cut and answer.endswith(self.cut):
            answer = answer[: -len(self.cut)]
        if eos and eos in answer:
            answer = answer[: answer.index(eos) + len(eos)]
        bare = answer.rstrip()
        if bare.endswith(self.specials):
            return bare
        return (answer if self.added[:1].isspace() else answer.rstrip("\n")) + (self.added or eos or "")

    def removed(self, answer: str, eos: str | None) -> str:
        """The answer without its end of turn: of an answer that was cut, the model has said no more."""
        whole = self.applied(answer, eos)
        last = next(
            (
                end
                for end in sorted((self.added, eos or "", *self.specials), key=len, reverse=True)
                if end and whole.endswith(end)
            ),
            "",
        )
        return whole.removesuffix(last)


def end_of_turn(question: str, alone: str, followed: str, specials: Sequence[str]) -> EndOfTurn:
    """The end of an answer. question: the rendering of a question, without generation prompt if the template can leave it out.
    alone: question and answer. followed: question, answer, and a next message. specials: the special tokens."""
    tokens = tuple(specials)
    shared = _shared(alone, followed)
    if shared == len(alone):
        if alone.rstrip().endswith(tokens):
            return EndOfTurn("", "", tokens)
        first = _first_special(followed[shared:], tokens)
        return EndOfTurn("", followed[shared : shared + first] if first else "", tokens)
    always = _generation_prompt(question, alone, tokens)
    if always:
        return EndOfTurn(always, "", tokens)
    end = alone[:shared]
    while end and not end.rstrip().endswith(tokens) and _inside_special(alone, len(end), tokens):
        end = end[:-1]
    if end.rstrip().endswith(tokens) and not alone[len(end.rstrip()) :].startswith(tokens):
        return EndOfTurn(alone[len(end.rstrip()) :], "", tokens)
    return EndOfTurn("", "", tokens)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """All special tokens: those with a role (bos, eos, ...) and those only marked as special, such as <|eot_id|> in Llama 3's
    base models."""
    added = tokenizer.added_tokens_decoder.values()
    return list(dict.fromkeys([*tokenizer.all_special_tokens, *(token.content for token in added if token.special)]))


def _shared(one: str, other: str) -> int:
    """Length of the common beginning."""
    return next(
        (place for place, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), min(len(one), len(other))
    )


def _first_special(text: str, specials: tuple[str, ...]) -> int:
    """Index after the first special token of a text, if only white space precedes it; else 0."""
    begin = len(text) - len(text.lstrip())
    longest = max((len(token) for token in specials if text.startswith(token, begin)), default=0)
    return begin + longest if longest else 0


def _inside_special(text: str, place: int, specials: tuple[str, ...]) -> bool:
    """Whether a special token lies around this place, or white space before it."""
    if text[place - 1 : place].isspace():
        return True
    return any(text.startswith(token, start) for token in specials for start in range(max(0, place - len(token) + 1), place))


def _generation_prompt(question: str, alone: str, specials: tuple[str, ...]) -> str:
    """The generation prompt that a template adds to every rendering; empty if it adds none."""
    after = question.rpartition("QUESTION")[2]
    first = _first_special(after, specials)
    prompt = after[first:]
    return prompt if first and prompt.strip() and alone.endswith(prompt) else ""


DATE_OF_ROWS_WITHOUT_TIME = datetime(2025, 1, 1, tzinfo=UTC)
"""A fixed date, so that the same dataset gives the same tokens on every day."""

DATE_CALL = re.compile(r"strftime_now\(\s*(['\"])(?P<format>.*?)\1\s*\)")

RESERVED = frozenset(
    {
        "messages",
        "tools",
        "conversations",
        "conversation",
        "chat_template",
        "tokenize",
        "add_generation_prompt",
        "continue_final_message",
        "return_assistant_tokens_mask",
        "millrace_dates",
    }
)
"""Names that a logged request cannot set in the template."""

CONTINUES = "continue_final_message"

ERRORS = (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError, RecursionError)

PROBE_ARGUMENTS = {"city": "it's Oslo"}
PROBE_CALL = {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": PROBE_ARGUMENTS}}
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "d"}}, "required": ["city"]},
    },
}
QUESTION = {"role": "user", "content": "QUESTION"}


class Unrenderable(Exception):
    """A row that cannot be taught. reason: a fixed sentence, by which such rows are counted; detail: what the template said."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason, self.detail = reason, detail


class ChatTemplate:
    """Renders conversations. Raises ModelError for a tokenizer without a template, or one that is not valid Jinja."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        if not tokenizer.chat_template:
            raise ModelError("the tokenizer has no chat template; put a chat_template.jinja into its directory")
        self.tokenizer = tokenizer
        self._sources: dict[bool, str] = {}
        self._ends: dict[bool, EndOfTurn] = {}

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> ChatTemplate:
        """The template of a tokenizer; what was found out about it is kept as long as the tokenizer."""
        cached = _TEMPLATES.get(tokenizer)
        if cached is None or cached[0] != tokenizer.chat_template:
            cached = _TEMPLATES[tokenizer] = (tokenizer.chat_template, cls(tokenizer))
        return cached[1]

    def prompt(self, row: Row, before: int) -> str:
        """What a server renders from the messages before message `before`, with the generation prompt; the last message stays
        open if the request continues it. Raises Unrenderable."""
        continued = continues(row, before)
        return self._rendered(row, row.messages[:before], generation_prompt=not continued, continued=continued)

    def through(self, row: Row, last: int, answer: dict[str, Any] | None = None) -> str:
        """The messages up to and including message `last`; `answer` stands in its place. Raises Unrenderable."""
        messages = [*row.messages[:last], row.messages[last] if answer is None else answer]
        return self._rendered(row, messages, generation_prompt=False)

    @cached_property
    def arguments(self) -> Arguments:
        """The form of tool calls' arguments that the template takes. A server gives an object; a few templates take only text,
        or print an object in Python's form, which no parser of tool calls reads."""
        call: list[dict[str, Any]] = [QUESTION, {"role": "assistant", "content": "", "tool_calls": [PROBE_CALL]}]
        for form in ("object", "text"):
            try:
                text = self._text(server_messages(call, form, False, False), [PROBE_TOOL], {}, False)
            except ERRORS:
                continue
            if "{'city'" not in text:
                return form
        return "object"

    @cached_property
    def takes_parts(self) -> bool:
        """Whether the template takes a list of parts as content."""
        try:
            text = self._text([{"role": "user", "content": [{"type": "text", "text": "QUESTION"}]}], None, {}, True)
        except ERRORS:
            return False
        return "QUESTION" in text and "'text'" not in text and '"text"' not in text

    @cached_property
    def reasoning_block(self) -> tuple[str, str] | None:
        """Text that the template writes before and after the reasoning of an answer; None if it writes no reasoning."""
        said = with_reasoning({"role": "assistant", "content": "ANSWER"}, "THOUGHT")
        try:
            bare = self._probe([QUESTION])
            text = self._probe([QUESTION, said])
            prompt = self._probe([QUESTION], generation_prompt=True)
        except ERRORS:
            return None
        thought, answer = text.find("THOUGHT", text.rfind("QUESTION")), text.rfind("ANSWER")
        if not 0 <= thought < answer:
            return None
        begin = text[:thought]
        marks = [begin.rfind(mark) for mark, _ in MARKS if mark in begin[len(bare) :]]
        start = max(marks) if marks else min(len(shared_beginning(text, prompt)), thought)
        return text[start:thought], text[thought + len("THOUGHT") : answer]

    def unread(self, request: dict[str, Any]) -> list[str]:
        """Names of what a request gives (Row.request) and the template does not read: it would change nothing. Without
        reasoning there is none to leave out."""
        effort, given = request.get("reasoning_effort"), dict(request.get("chat_template_kwargs") or {})
        given |= {name: value for name, value in request.items() if name == "documents"}
        given |= ({"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}) if effort else {}
        if given.get("enable_thinking") is False and self.reasoning_block is None:
            del given["enable_thinking"]
        words = set(re.findall(r"\w+", " ".join(self._texts())))
        return [str(name) for name in given if name in RESERVED or name not in words]

    def end_of_turn(self, has_call: bool) -> EndOfTurn:
        """How an answer ends, with or without a tool call."""
        if has_call not in self._ends:
            answer = (
                {"role": "assistant", "content": "", "tool_calls": [PROBE_CALL]}
                if has_call
                else {"role": "assistant", "content": "ANSWER"}
            )
            follow = (
                {"role": "tool", "tool_call_id": PROBE_CALL["id"], "name": "weather", "content": "NEXT"}
                if has_call
                else {"role": "user", "content": "NEXT"}
            )
            specials = special_tokens(self.tokenizer)
            self._ends[has_call] = EndOfTurn("", "", tuple(specials))
            for has_tools in (has_call, True):  # some templates render nothing without tools
                with suppress(*ERRORS):
                    self._ends[has_call] = end_of_turn(
                        *(
                            self._probe(messages, has_tools)
                            for messages in ([QUESTION], [QUESTION, answer], [QUESTION, answer, follow])
                        ),
                        specials=specials,
                    )
                    break
        return self._ends[has_call]

    def _probe(self, messages: list[dict[str, Any]], has_tools: bool = False, generation_prompt: bool = False) -> str:
        return self._text(
            server_messages(messages, self.arguments, False, False), [PROBE_TOOL] if has_tools else None, {}, generation_prompt
        )

    def _texts(self) -> list[str]:
        template = self.tokenizer.chat_template
        return list(template.values()) if isinstance(template, dict) else [template]

    def _rendered(self, row: Row, messages: Sequence[dict[str, Any]], generation_prompt: bool, continued: bool = False) -> str:
        try:
            has_developer = re.search("""(["'])developer\\1""", self._source(bool(row.tools))) is not None  # as vLLM finds out
            served = server_messages(messages, self.arguments, has_developer, self.takes_parts)
            if not (generation_prompt or continued) and not isinstance(messages[-1].get("content"), list):
                served[-1:] = server_messages(messages[-1:], self.arguments, has_developer, False)  # as the model says it
        except ValueError as error:
            raise Unrenderable("a message is in a form that the chat template does not take", str(error)) from error
        try:
            text = self._text(served, row.tools, template_variables(row), generation_prompt, row.ts, continued)
            text.encode()  # half of a surrogate pair is no text: tokenizers refuse it
            return text
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"the chat template is not valid Jinja, line {error.lineno}: {error.message}") from error
        except ERRORS as error:
            raise Unrenderable("the chat template refuses the row", self._said(error)) from error

    def _said(self, error: Exception) -> str:
        """The template's own words if they quote no row, else the kind of error."""
        said = str(error)
        return said if said and any(said in source for source in self._texts()) else type(error).__name__

    def _text(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: dict[str, Any],
        generation_prompt: bool,
        ts: datetime | None = None,
        continued: bool = False,
    ) -> str:
        source = self._source(bool(tools))
        dates = {
            call["format"]: (ts or DATE_OF_ROWS_WITHOUT_TIME).strftime(call["format"]) for call in DATE_CALL.finditer(source)
        }
        rendered, _ = render_jinja_template(
            conversations=[messages], tools=tools or None, chat_template=source, add_generation_prompt=generation_prompt,
            continue_final_message=continued, **{**self.tokenizer.special_tokens_map, **variables}, millrace_dates=dates,
        )  # fmt: skip
        return rendered[0]

    def _source(self, has_tools: bool) -> str:
        """The template's text: of several templates the one for requests with or without tools; with the date of the row."""
        if has_tools not in self._sources:
            try:
                source = self.tokenizer.get_chat_template(tools=[PROBE_TOOL] if has_tools else None)
            except ValueError as error:
                raise ModelError("the tokenizer has several chat templates and none is named `default`; name one so") from error
            if source.count("strftime_now(") == len(DATE_CALL.findall(source)) > 0:
                source = "{%- macro strftime_now(format) -%}{{- millrace_dates[format] -}}{%- endmacro %}{{- '' }}" + source
            self._sources[has_tools] = source
        return self._sources[has_tools]


def continues(row: Row, before: int) -> bool:
    """Whether the request asks for the rest of the assistant message before message `before` (vLLM's
    continue_final_message)."""
    return (row.request or {}).get(CONTINUES) is True and before > 0 and row.messages[before - 1].get("role") == "assistant"


def template_variables(row: Row) -> dict[str, Any]:
    """Template arguments of the row's request, besides messages and tools."""
    request = row.request or {}
    given = request.get("chat_template_kwargs")
    variables = {name: value for name, value in given.items() if isinstance(name, str)} if isinstance(given, dict) else {}
    if isinstance(request.get("documents"), list):
        variables["documents"] = [document for document in request["documents"] if isinstance(document, dict)]
    for name in ("reasoning_effort", "response_format"):
        if request.get(name) is not None:
            variables[name] = request[name]
    if isinstance(request.get("reasoning_effort"), str):
        variables.setdefault("enable_thinking", request["reasoning_effort"] != "none")
    return {name: value for name, value in variables.items() if name not in RESERVED and not name.startswith("_")}


def shared_beginning(one: str, other: str) -> str:
    """The common beginning of two texts."""
    length = next(
        (place for place, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), min(len(one), len(other))
    )
    return one[:length]


_TEMPLATES: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[Any, ChatTemplate]] = WeakKeyDictionary()

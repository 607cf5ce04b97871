"""What agents ask and are answered, in the forms of three APIs.

    api = APIS["/messages"]
    messages, tools, most_tokens = api.read(body, earlier)
    answer = api.write(Answered(message, "stop", prompt_tokens=12, answer_tokens=5))
    for event in api.stream(answer): ...          # the same as events of a stream, with whole texts in one event each

OpenAI's chat completions and responses (types of openai-python), Anthropic's messages (types of anthropic-sdk-python). What a
request asks and nobody here does is refused. earlier: what a session knows by its id, for
`previous_response_id` the messages up to a response, for `item_reference` one item of an answer."""

import json
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from model_ops.chat_apis import anthropic_api, responses_api
from model_ops.environments.policy_sessions import SessionError

_EVERYWHERE = "model metadata service_tier stream tools temperature top_p top_k min_p seed"
_OPENAI = f"""{_EVERYWHERE} user safety_identifier store stream_options prompt_cache_key prompt_cache_options
    prompt_cache_retention"""
CHAT_COMPLETIONS, RESPONSES, MESSAGES, FUNCTION, FLAT_FUNCTION, CLIENT_TOOL = (
    frozenset(names.split())
    for names in (
        f"""{_OPENAI} messages max_tokens max_completion_tokens reasoning_effort chat_template_kwargs documents prediction""",
        f"""{_OPENAI} input instructions previous_response_id max_output_tokens max_tool_calls include reasoning.effort
        reasoning.summary reasoning.generate_summary""",
        f"""{_EVERYWHERE} messages system max_tokens cache_control output_config.effort thinking.display diagnostics
        inference_geo speed user_profile_id workspace_id""",
        "function.name function.description function.parameters function.strict",
        "name description parameters strict",
        "name description input_schema strict cache_control eager_input_streaming",
    )
)
"""Of requests, and of a tool in each of them. The training samples as it does, whatever `temperature` and the like say: what
samples otherwise is not what learns. `strict` promises nothing, and `max_tool_calls` counts tools of a provider."""
_NEUTRAL: tuple[tuple[Any, str], ...] = (
    (False, "stop logprobs background continue_final_message tool_choice.disable_parallel_tool_use defer_loading async"),
    (0, "top_logprobs presence_penalty frequency_penalty"),
    (1, "n repetition_penalty"),
    (True, "parallel_tool_calls add_generation_prompt"),
    ("auto", "tool_choice tool_choice.type function_call truncation reasoning.context"),
    ("none", "tool_choice tool_choice.type function_call"),
    ("text", "response_format.type text.format.type"),
    ("medium", "verbosity text.verbosity"),
    ("standard", "reasoning.mode"),
    ("adaptive", "thinking.type"),
    ("disabled", "truncation thinking.type"),
    ("function", "type"),
    ("custom", "type"),
    (["text"], "modalities"),
    (["direct"], "allowed_callers"),
)
NEUTRAL = {name: [value for value, names in _NEUTRAL if name in names.split()] for _, all_ in _NEUTRAL for name in all_.split()}
"""Values with which a field asks for nothing, as None and empty values do in any field."""
_SENTENCES = {
    "n": "is not 1: each request has one answer",
    "stop stop_sequences": "is given: answers end where the model ends them",
    "response_format text.format output_config.format output_format": "is given: the model is not guided while it learns",
    "tool_choice": "forces or narrows the choice: the model is not guided while it learns, so give only tools that it may call",
    "parallel_tool_calls tool_choice.disable_parallel_tool_use": "asks for one call at a time: an answer may hold several, so "
    "leave it out and run them one after the other",
    "functions function_call": "is the older form: give tools and tool_choice instead",
    "logprobs top_logprobs": "is given: answers come without log-probabilities",
    "conversation prompt": "names what another server stores: send its messages, or the previous_response_id of an answer of "
    "this attempt",
    "background": "is true: the answer comes with its request",
    "thinking": "limits the reasoning: it is not cut here, so give the type adaptive or disabled",
    "logit_bias presence_penalty frequency_penalty repetition_penalty": "changes how the model samples: the training's own "
    "sampling counts, so leave it out",
}
SENTENCES = {name: text for names, text in _SENTENCES.items() for name in names.split()}
"""By the name of a field, or of the one that holds it."""
ELSE = "is given, and this address does not do what it asks: leave it out"


def check_fields(given: dict[str, Any], answered: Set[str], at: str = "", shown: str = "") -> None:
    """at: what holds the fields, as the tables name it. shown: the same, as the message does. Raises SessionError."""
    for key, value in given.items():
        field = f"{at}{key}"
        if value is None or value in ("", [], {}) or field in answered or value in NEUTRAL.get(field, ()):
            continue
        if field == "parallel_tool_calls" and not given.get("tools"):
            continue
        if isinstance(value, dict) and any(each.startswith(f"{field}.") for each in (*answered, *NEUTRAL)):
            check_fields(value, answered, f"{field}.", shown)
            continue
        reason = SENTENCES.get(field) or SENTENCES.get(field.rpartition(".")[0], ELSE)
        name = f"{shown}{field[:80]}"
        raise SessionError(f"{name} {reason}", code="unsupported_parameter", param=name)


def check_tools(tools: Any, answered: Set[str], *types: str | None) -> None:
    """types: of functions that the agent runs, which the model may call. Raises SessionError for any other tool."""
    for place, tool in enumerate(tools or ()):
        shown, given = f"tools[{place}]", isinstance(tool, dict) and tool.get("type")
        if given not in types:
            raise SessionError(
                f"{shown} is of the type {str(given)[:60]}: the model calls only functions with a schema, which the agent runs",
                param=shown,
            )
        check_fields(tool, answered, shown=f"{shown}.")


MODEL = "policy"
Body = dict[str, Any]


class SessionRequest(NamedTuple):
    """A request as a chat. most_tokens: of its answer. variables: what it gives the chat template besides (Row.request)."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    most_tokens: int | None
    variables: dict[str, Any] | None


@dataclass(frozen=True)
class Answered:
    """What the policy said. message: of chat completions. reason: stop, tool_calls or length."""

    message: dict[str, Any]
    reason: str
    prompt_tokens: int
    answer_tokens: int


class SessionApi(Protocol):
    """One of the forms."""

    def read(self, body: Body, earlier: Mapping[str, list[dict[str, Any]]]) -> SessionRequest:
        """Raises SessionError for what cannot be answered."""

    def write(self, said: Answered) -> Body: ...

    def stream(self, answer: Body, body: Body) -> Iterator[Body]: ...


class ChatCompletionsApi:
    """OpenAI's chat completions."""

    def read(self, body: Body, earlier: Mapping[str, list[dict[str, Any]]]) -> SessionRequest:
        check_fields(body, CHAT_COMPLETIONS)
        check_tools(body.get("tools"), FUNCTION, "function", None)
        variables = {name: body[name] for name in ("reasoning_effort", "chat_template_kwargs", "documents") if body.get(name)}
        return _asked(body, "messages", body.get("messages"), body.get("tools"), variables)

    def write(self, said: Answered) -> Body:
        prompt, answer = said.prompt_tokens, said.answer_tokens
        return {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": MODEL,
            "choices": [{"index": 0, "message": said.message, "finish_reason": said.reason, "logprobs": None}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer},
        }

    def stream(self, answer: Body, body: Body) -> Iterator[Body]:
        about = {name: answer[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
        (choice,) = answer["choices"]
        calls = [{"index": place, **call} for place, call in enumerate(choice["message"].get("tool_calls") or ())]
        delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
        yield {**about, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {**about, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
        if (body.get("stream_options") or {}).get("include_usage"):
            yield {**about, "choices": [], "usage": answer["usage"]}


class ResponsesApi:
    """OpenAI's responses."""

    def read(self, body: Body, earlier: Mapping[str, list[dict[str, Any]]]) -> SessionRequest:
        check_fields(body, RESPONSES)
        check_tools(body.get("tools"), FLAT_FUNCTION, "function")
        _refuse("message.output_text.logprobs" in (body.get("include") or ()), "include", "asks for log-probabilities")
        before, instructions, items = (body.get(name) for name in ("previous_response_id", "instructions", "input"))
        _refuse(bool(before) and before not in earlier, "previous_response_id", "names no answer of this attempt")
        _refuse(not isinstance(instructions, str | None), "instructions", "is no text")
        if isinstance(items, list):
            items = [_item(item, earlier) for item in items]
        lead, messages = responses_api.messages_of([], instructions), responses_api.messages_of(items)
        messages = [*lead, *(earlier[before] if before else ()), *messages]
        effort = (body.get("reasoning") or {}).get("effort")
        tools = responses_api.tools_of(body.get("tools"))
        return _asked(body, "input", messages, tools, {"reasoning_effort": effort} if effort else {})

    def write(self, said: Answered) -> Body:
        prompt, answer = said.prompt_tokens, said.answer_tokens
        cut = said.reason == "length"
        return {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "model": MODEL,
            "output": list(_items(said.message)),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": answer,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + answer,
            },
        }

    def stream(self, answer: Body, body: Body) -> Iterator[Body]:
        events: list[Body] = [{"type": "response.created", "response": {**answer, "status": "in_progress", "output": []}}]
        for place, item in enumerate(answer["output"]):
            at = {"output_index": place, "item_id": item["id"]}
            empty = {name: [] if isinstance(value, list) else value for name, value in item.items()}
            events.append({"type": "response.output_item.added", "output_index": place, "item": empty})
            if item["type"] == "function_call":
                events.append({"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]})
                done = {"arguments": item["arguments"], "name": item["name"]}
                events.append({"type": "response.function_call_arguments.done", **at, **done})
            elif item["type"] == "message":
                (part,), at = item["content"], {**at, "content_index": 0}
                events.append({"type": "response.content_part.added", **at, "part": {**part, "text": ""}})
                events.append({"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []})
                events.append({"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []})
                events.append({"type": "response.content_part.done", **at, "part": part})
            events.append({"type": "response.output_item.done", "output_index": place, "item": item})
        events.append({"type": f"response.{answer['status']}", "response": answer})
        yield from ({**event, "sequence_number": number} for number, event in enumerate(events))


class MessagesApi:
    """Anthropic's messages."""

    def read(self, body: Body, earlier: Mapping[str, list[dict[str, Any]]]) -> SessionRequest:
        check_fields(body, MESSAGES)
        check_tools(body.get("tools"), CLIENT_TOOL, "custom", None)
        said, system = body.get("messages") or (), body.get("system")
        for content in (system, *(message["content"] for message in said)):
            _check_blocks(content)
        thinking, effort = body.get("thinking") or {}, (body.get("output_config") or {}).get("effort")
        variables = {"chat_template_kwargs": {"enable_thinking": thinking["type"] == "adaptive"}} if thinking else {}
        variables |= {"reasoning_effort": effort} if effort else {}
        messages, tools = anthropic_api.messages_of(said, system), anthropic_api.tools_of(body.get("tools"))[0]
        return _asked(body, "messages", messages, tools, variables)

    def write(self, said: Answered) -> Body:
        reasons = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
        return {
            "id": f"msg_{uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": list(_blocks(said.message)),
            "stop_reason": reasons[said.reason],
            "stop_sequence": None,
            "usage": {"input_tokens": said.prompt_tokens, "output_tokens": said.answer_tokens},
        }

    def stream(self, answer: Body, body: Body) -> Iterator[Body]:
        yield {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}}
        for index, block in enumerate(answer["content"]):
            kind, empty = block["type"], {"text": "", "thinking": "", "input": {}}
            begun = {name: empty.get(name, value) for name, value in block.items()}
            delta = {
                "text": {"type": "text_delta", "text": block.get("text")},
                "thinking": {"type": "thinking_delta", "thinking": block.get("thinking")},
                "tool_use": {"type": "input_json_delta", "partial_json": json.dumps(block.get("input"))},
            }[kind]
            yield {"type": "content_block_start", "index": index, "content_block": begun}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        ended = {name: answer[name] for name in ("stop_reason", "stop_sequence")}
        yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": answer["usage"]["output_tokens"]}}
        yield {"type": "message_stop"}


APIS: dict[str, SessionApi] = {
    "/chat/completions": ChatCompletionsApi(),
    "/responses": ResponsesApi(),
    "/messages": MessagesApi(),
}
"""By the end of the path."""
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
TEXTS = ("text", "input_text", "output_text", None)
"""Types of a message's parts that are text."""
BLOCKS = ("text", "thinking", "tool_use", "tool_result", "mid_conv_system")
"""Types of Anthropic's content blocks that the model is shown whole."""
ITEMS = ("function_call", "function_call_output", "reasoning")
"""Types of items, beside messages, that the model is shown."""


def _refuse(is_wrong: bool, field: str, text: str) -> None:
    if is_wrong:
        raise SessionError(f"{field} {text}", param=field)


def _asked(body: Body, field: str, messages: Any, tools: Any, variables: dict[str, Any]) -> SessionRequest:
    """field: which one holds the messages."""
    is_list = isinstance(messages, list) and bool(messages) and all(isinstance(each, dict) for each in messages)
    _refuse(not is_list, field, "is no list of messages")
    for message in messages:
        _check_message(message, field)
    text = "ends with the assistant's turn, which is not continued: end with a user's message or a tool's result"
    _refuse(messages[-1].get("role") == "assistant", field, text)
    for place, tool in enumerate(tools or ()):
        _refuse(not isinstance(tool["function"].get("name"), str), f"tools[{place}]", "has no name")
    limits = {name: body[name] for name in LIMITS if body.get(name) is not None}
    for name, most in limits.items():
        _refuse(not isinstance(most, int) or most < 1, name, "is no number of tokens above 0")
    choice = body.get("tool_choice")
    no_tools = choice == "none" or (isinstance(choice, dict) and choice.get("type") == "none")
    return SessionRequest(messages, None if no_tools else tools, min(limits.values(), default=None), variables or None)


def _check_message(message: dict[str, Any], field: str) -> None:
    """Raises SessionError for what a chat template would leave out or write in another form."""
    content = message.get("content")
    _refuse(not isinstance(content, str | list | None), field, "has a message whose content is no text")
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        _refuse(kind not in TEXTS, field, f"holds a part of the type {str(kind)[:60]}: the model reads only text")
    for name in ("audio", "refusal"):
        _refuse(bool(message.get(name)), field, f"has a message with {name}, which the model does not read")
    for call in message.get("tool_calls") or ():
        is_function = isinstance(call.get("function"), dict) and isinstance(call["function"].get("name"), str)
        _refuse(not is_function, field, "holds a call that is no function's")


def _check_blocks(content: Any) -> None:
    _refuse(not isinstance(content, str | list | None), "messages", "has content that is no text")
    for block in content if isinstance(content, list) else ():
        kind = block.get("type")
        _refuse(kind not in BLOCKS, "messages", f"holds a block of the type {str(kind)[:60]}, which the model does not read")
        _check_blocks(block.get("content"))


def _item(item: Body, earlier: Mapping[str, list[dict[str, Any]]]) -> Body:
    """An item of the input. A reference, and reasoning that is not sent again, stands for an item of this attempt."""
    kind, names = item.get("type"), [item[name] for name in ("id", "encrypted_content") if item.get(name)]
    if kind == "item_reference" or (kind == "reasoning" and not (item.get("content") or item.get("summary"))):
        known = [earlier[name][0] for name in names if name in earlier and earlier[name][0].get("id") == name]
        _refuse(not known, "input", f"refers to {str(names[0])[:80] if names else kind}, which no answer of this attempt holds")
        return known[0]
    is_read = kind in ITEMS or (kind in (None, "message") and isinstance(item.get("role"), str))
    _refuse(not is_read, "input", f"holds an item of the type {str(kind)[:60]}, which the model does not read")
    return item


def _items(message: dict[str, Any]) -> Iterator[Body]:
    """A message as items of a response."""
    name = uuid4().hex
    if thought := message.get("reasoning_content"):
        about = {"id": f"rs_{name}", "encrypted_content": f"rs_{name}", "summary": []}
        yield {"type": "reasoning", **about, "content": [{"type": "reasoning_text", "text": thought}]}
    if message.get("content"):
        part = {"type": "output_text", "text": message["content"], "annotations": [], "logprobs": []}
        yield {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed", "content": [part]}
    for number, call in enumerate(message.get("tool_calls") or ()):
        about = {"call_id": call["id"], "status": "completed", **call["function"]}
        yield {"type": "function_call", "id": f"fc_{name}{number}", **about}


def _blocks(message: dict[str, Any]) -> Iterator[Body]:
    """A message as blocks of Anthropic's API."""
    if thought := message.get("reasoning_content"):
        yield {"type": "thinking", "thinking": thought, "signature": ""}
    if message.get("content"):
        yield {"type": "text", "text": message["content"]}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": json.loads(function["arguments"])}

"""What agents ask and are answered, in the forms of three APIs.

    api = APIS["/messages"]
    messages, tools, most_tokens = api.read(body, earlier)
    answer = api.write(Answered(message, "stop", prompt_tokens=12, answer_tokens=5))
    for event in api.stream(answer): ...          # the same as events of a stream, with whole texts in one event each

OpenAI's chat completions and responses (types of openai-python), Anthropic's messages (types of anthropic-sdk-python). earlier:
the messages of a session by the id of a response, for `previous_response_id`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from model_ops.chat_apis import UnknownBlock, anthropic_api, responses_api
from model_ops.environments.policy_sessions import SessionError

MODEL = "policy"
Body = dict[str, Any]


class SessionRequest(NamedTuple):
    """A request as a chat. most_tokens: of its answer."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    most_tokens: int | None


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
        _refuse(body.get("n") not in (None, 1), "n is not 1: each request has one answer")
        _refuse(bool(body.get("stop")), "stop is given: answers end where the model ends them")
        form = (body.get("response_format") or {}).get("type")
        _refuse(form not in (None, "text"), "response_format is given: the model is not guided while it learns")
        return _asked(body, body.get("messages"), body.get("tools"), "max_completion_tokens", "max_tokens")

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
        form = ((body.get("text") or {}).get("format") or {}).get("type")
        _refuse(form not in (None, "text"), "text.format is given: the model is not guided while it learns")
        before = body.get("previous_response_id")
        _refuse(before is not None and before not in earlier, "previous_response_id names no answer of this attempt")
        messages = responses_api.messages_of(body.get("input"), body.get("instructions"))
        said = [message for message in earlier[before] if message["role"] != "system"] if before else []
        lead = messages[:1] if messages and messages[0]["role"] == "system" else []
        messages = [*lead, *said, *messages[len(lead) :]]
        return _asked(body, messages, responses_api.tools_of(body.get("tools")), "max_output_tokens")

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
        _refuse(bool(body.get("stop_sequences")), "stop_sequences is given: answers end where the model ends them")
        try:
            messages = anthropic_api.messages_of(body.get("messages"), body.get("system"))
        except UnknownBlock as error:
            raise SessionError(f"the messages hold {error}, which the model does not read") from error
        return _asked(body, messages, anthropic_api.tools_of(body.get("tools"))[0], "max_tokens")

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


def _refuse(is_wrong: bool, text: str) -> None:
    if is_wrong:
        raise SessionError(text)


def _asked(body: Body, messages: Any, tools: Any, *limits: str) -> SessionRequest:
    is_list = isinstance(messages, list) and bool(messages) and all(isinstance(each, dict) for each in messages)
    _refuse(not is_list, "there are no messages")
    for tool in tools or ():
        _refuse(not isinstance(tool["function"]["name"], str), "a tool has no name")
    choice = body.get("tool_choice")
    no_tools = choice == "none" or (isinstance(choice, dict) and choice.get("type") == "none")
    most = next((body[name] for name in limits if isinstance(body.get(name), int) and body[name] > 0), None)
    return SessionRequest(messages, None if no_tools else tools, most)


def _items(message: dict[str, Any]) -> Iterator[Body]:
    """A message as items of a response."""
    name = uuid4().hex
    if thought := message.get("reasoning_content"):
        yield {"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]}
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

"""Joins streamed answers of Anthropic, Gemini, Bedrock and the Responses API into the response of the call without streaming.

    with_joined_events(record)      # a log record whose response is a list of stream events, or the text of its events

Events: Anthropic's message_start, content_block_delta, ...; ConverseStream's messageStart, contentBlockDelta, ...; chunks of
Gemini's streamGenerateContent, each a GenerateContentResponse; those of the Responses API are joined by responses_api.py. The
response is at `response`, `full_response` (Vertex AI), or `output.outputBodyJson` (Bedrock's log). A stream without its end was
cut: it has an `error`, as in `streams`.
"""

from __future__ import annotations

import json
from typing import Any

from model_ops.chat_apis import responses_api
from resources.records.objects.log_reader import record_of
from resources.records.providers.completion_streams import joined_chunks
from resources.records.providers.ollama_api import is_response
from resources.records.providers.ollama_api import joined_chunks as joined_prompt_chunks
from resources.records.streams import events, with_failure

CUT = "stream_cut: the stream ends without a reason why the model stopped"
NEEDLES = (
    "message_start",
    "messageStart",
    "contentBlockDelta",
    'BodyJson":[',
    'BodyJson": [',
    'esponse":[',
    'esponse": [',
    '"data: {',
    '"data:{',
    r"\"done\":",
    *responses_api.NEEDLES,
)
"""A record without any of these holds no streamed answer of these providers."""


def with_joined_events(record: dict[str, Any]) -> dict[str, Any]:
    """The record with its streamed response joined; unchanged where the response is no stream of these providers."""
    for key in ("response", "full_response"):
        answer = joined(record.get(key))
        if answer is not None:
            return with_failure({**record, key: answer}, answer)
    output = record.get("output")
    body = output.get("outputBodyJson") if isinstance(output, dict) else None
    answer = joined(body)
    chunks = [each for each in body if isinstance(each, dict)] if isinstance(body, list) and answer is None else []
    if found := joined_chunks(chunks):
        answer = _cut(*found)
    return record if answer is None else {**record, "output": {**output, "outputBodyJson": answer}}


def joined(response: Any) -> dict[str, Any] | None:
    """The whole response of a stream; None for anything else."""
    if isinstance(response, dict):  # boto3's {ResponseMetadata, stream: [events]}
        answer = joined(response.get("stream")) if isinstance(response.get("stream"), list) else None
        return None if answer is None else {**answer, "ResponseMetadata": response.get("ResponseMetadata")}
    done = False
    if isinstance(response, str):
        response, done = events(response) if "data:" in response or '"done":' in response else (None, False)
    if not isinstance(response, list):
        return None
    found = [event.get("data", event) if "event" in event else event for event in response if isinstance(event, dict)]
    found = [each for event in found if isinstance(each := record_of(event) if isinstance(event, str) else event, dict)]
    if any(map(responses_api.is_event, found)):
        return responses_api.joined_response(found, done or "[DONE]" in response)
    if any(event.get("type") in ("message_start", "content_block_delta") for event in found):
        return _anthropic(found)
    if any({"messageStart", "contentBlockDelta"} & event.keys() for event in found):
        return _converse(found)
    if found and (is_response(found[0]) or found[0].get("object") == "text_completion"):
        return _cut(*joined_prompt_chunks(found))
    if any({"candidates", "promptFeedback", "prompt_feedback"} & event.keys() for event in found):
        return _gemini(found)
    return None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _anthropic(found: list[dict[str, Any]]) -> dict[str, Any]:
    """A Message from message_start, the content blocks' deltas, and message_delta (docs: Streaming Messages)."""
    answer: dict[str, Any] = {"type": "message", "role": "assistant"}
    opened: dict[Any, dict[str, Any]] = {}
    blocks: list[dict[str, Any]] = []  # a start begins a block, whatever its index: some servers give all blocks the same
    for event in found:
        kind, index = event.get("type"), event.get("index", 0)
        if kind == "message_start":
            answer |= _object(event.get("message"))
        elif kind in ("content_block_start", "content_block_delta"):
            if kind == "content_block_start" or index not in opened:
                opened[index] = dict(_object(event.get("content_block"))) or {"type": "text"}
                blocks.append(opened[index])
            _add_delta(opened[index], _object(event.get("delta")))
        elif kind == "message_delta":
            answer |= {key: value for key, value in _object(event.get("delta")).items() if value is not None}
            answer["usage"] = {
                **_object(answer.get("usage")),
                **{key: value for key, value in _object(event.get("usage")).items() if value is not None},
            }
        elif kind == "error":
            answer["error"] = event.get("error") or {"message": "error"}
    answer["content"] = [_with_input(block) for block in blocks]
    return _cut(answer, answer.get("stop_reason"))


def _add_delta(block: dict[str, Any], delta: dict[str, Any]) -> None:
    for key in ("text", "thinking"):
        if isinstance(delta.get(key), str):
            block[key] = (block.get(key) or "") + delta[key]
    if isinstance(delta.get("partial_json"), str):
        block["written"] = block.get("written", "") + delta["partial_json"]


def _with_input(block: dict[str, Any]) -> dict[str, Any]:
    written = block.pop("written", "")
    return {**block, "input": _parsed(written)} if written else block


def _parsed(written: str) -> Any:
    """The arguments that a call's pieces make; the text itself where the stream was cut inside them."""
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return written


def _cut(answer: dict[str, Any], ended: Any) -> dict[str, Any]:
    if not ended and "error" not in answer:
        answer["error"] = {"message": CUT}
    return answer


def _converse(found: list[dict[str, Any]]) -> dict[str, Any]:
    """A Converse response from ConverseStream's events (API_runtime_ConverseStreamOutput)."""
    answer: dict[str, Any] = {}
    opened: dict[int, dict[str, Any]] = {}
    blocks: list[dict[str, Any]] = []
    role = "assistant"
    for event in found:
        for kind, value in event.items():
            told = _object(value)
            place = told.get("contentBlockIndex")
            index = place if isinstance(place, int) else max(opened, default=0)
            if kind == "messageStart":
                role = told.get("role") or role
            elif kind in ("contentBlockStart", "contentBlockDelta"):
                if kind == "contentBlockStart" or index not in opened:
                    tool = _object(_object(told.get("start")).get("toolUse"))
                    opened[index] = {"toolUse": {**tool, "input": ""}} if tool else {}
                    blocks.append(opened[index])
                _add_converse_delta(opened[index], _object(told.get("delta")))
            elif kind == "messageStop":
                answer |= {key: told[key] for key in ("stopReason", "additionalModelResponseFields") if key in told}
            elif kind == "metadata":
                answer |= {key: told[key] for key in ("usage", "metrics", "trace") if key in told}
            elif kind.endswith("Exception"):
                answer["error"] = {"message": told.get("message") or kind}
    for block in blocks:
        if isinstance(block.get("toolUse"), dict):
            block["toolUse"]["input"] = _parsed(block["toolUse"]["input"]) if block["toolUse"]["input"] else {}
    answer["output"] = {"message": {"role": role, "content": [block for block in blocks if block]}}
    return _cut(answer, answer.get("stopReason"))


def _add_converse_delta(block: dict[str, Any], delta: dict[str, Any]) -> None:
    thought = _object(delta.get("reasoningContent"))
    if isinstance(delta.get("text"), str):
        block["text"] = block.get("text", "") + delta["text"]
    elif isinstance(thought.get("text"), str):
        told = block.setdefault("reasoningContent", {}).setdefault("reasoningText", {"text": ""})
        told["text"] += thought["text"]
    elif "redactedContent" in thought:
        block.setdefault("reasoningContent", {})["redactedContent"] = thought["redactedContent"]
    elif isinstance(_object(delta.get("toolUse")).get("input"), str):
        tool = block.setdefault("toolUse", {"input": ""})
        tool["input"] += delta["toolUse"]["input"]


def _gemini(found: list[dict[str, Any]]) -> dict[str, Any]:
    """A GenerateContentResponse from its chunks: parts in order, the last finish reason and usage."""
    answer: dict[str, Any] = {}
    candidates: dict[int, dict[str, Any]] = {}
    for chunk in found:
        answer |= {key: value for key, value in chunk.items() if key != "candidates" and value is not None}
        pieces = chunk.get("candidates")
        for piece in pieces if isinstance(pieces, list) else []:
            if isinstance(piece, dict):
                place = piece.get("index")
                place = place if isinstance(place, int) else 0
                candidate = candidates.setdefault(place, {"index": place, "content": {"role": "model", "parts": []}})
                ended = piece.get("finishReason") or piece.get("finish_reason")
                candidate |= {"finishReason": ended} if ended else {}
                parts = _object(piece.get("content")).get("parts")
                for part in parts if isinstance(parts, list) else []:
                    _add_part(candidate["content"]["parts"], part)
    answer["candidates"] = [candidate for _, candidate in sorted(candidates.items())]
    blocked = answer.get("promptFeedback") or answer.get("prompt_feedback")
    ended = bool(candidates) and all("finishReason" in candidate for candidate in candidates.values())
    return _cut(answer, ended or (blocked and not candidates))


def _add_part(parts: list[Any], part: Any) -> None:
    """Adds a part; text goes on from the text before it."""
    last = parts[-1] if parts else None
    if (
        isinstance(part, dict)
        and isinstance(last, dict)
        and isinstance(part.get("text"), str)
        and isinstance(last.get("text"), str)
        and bool(part.get("thought")) == bool(last.get("thought"))
    ):
        parts[-1] = {**last, **part, "text": last["text"] + part["text"]}
    else:
        parts.append(part)

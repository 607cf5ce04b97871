"""Joins streamed answers of Anthropic, Gemini, Bedrock, Ollama and the Responses API (a list of events, or their text) into the
response of the call without streaming. A stream without its end was cut: it has an `error`, as in `streams`."""

import json
from typing import Any

from model_ops.chat_apis import mapping, objects, responses_api
from resources.records.objects.log_reader import record_of
from resources.records.providers.ollama_api import is_response
from resources.records.providers.ollama_api import joined_chunks as joined_prompt_chunks
from resources.records.streams import events, with_failure
from resources.records.streams import joined as joined_chat

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
    output = mapping(record.get("output"))
    body = output.get("outputBodyJson")
    answer = joined(body)
    if answer is None and (whole := joined_chunks(objects(body))):
        answer = _cut(*whole)
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
    named = [event.get("data", event) if "event" in event else event for event in response if isinstance(event, dict)]
    stream = [each for event in named if isinstance(each := record_of(event) if isinstance(event, str) else event, dict)]
    if any(map(responses_api.is_event, stream)):
        return responses_api.joined_response(stream, done or "[DONE]" in response)
    if any(event.get("type") in ("message_start", "content_block_delta") for event in stream):
        return _anthropic(stream)
    if any({"messageStart", "contentBlockDelta"} & event.keys() for event in stream):
        return _converse(stream)
    if stream and (is_response(stream[0]) or stream[0].get("object") == "text_completion"):
        return _cut(*joined_prompt_chunks(stream))
    if any({"candidates", "promptFeedback", "prompt_feedback"} & event.keys() for event in stream):
        return _gemini(stream)
    return None


def _anthropic(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """A Message from message_start, the content blocks' deltas, and message_delta (docs: Streaming Messages)."""
    answer: dict[str, Any] = {"type": "message", "role": "assistant"}
    opened: dict[Any, dict[str, Any]] = {}
    blocks: list[dict[str, Any]] = []  # a start begins a block, whatever its index: some servers give all blocks the same
    for event in stream:
        kind, index = event.get("type"), event.get("index", 0)
        if kind == "message_start":
            answer |= mapping(event.get("message"))
        elif kind in ("content_block_start", "content_block_delta"):
            if kind == "content_block_start" or index not in opened:
                opened[index] = dict(mapping(event.get("content_block"))) or {"type": "text"}
                blocks.append(opened[index])
            _add_delta(opened[index], mapping(event.get("delta")))
        elif kind == "message_delta":
            answer |= {key: value for key, value in mapping(event.get("delta")).items() if value is not None}
            answer["usage"] = {
                **mapping(answer.get("usage")),
                **{key: value for key, value in mapping(event.get("usage")).items() if value is not None},
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
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return written


def _cut(answer: dict[str, Any], ended: Any) -> dict[str, Any]:
    if not ended and "error" not in answer:
        answer["error"] = {"message": CUT}
    return answer


def _converse(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """A Converse response from ConverseStream's events (API_runtime_ConverseStreamOutput)."""
    answer: dict[str, Any] = {}
    opened: dict[int, dict[str, Any]] = {}
    blocks: list[dict[str, Any]] = []
    role = "assistant"
    for event in stream:
        for kind, value in event.items():
            fields = mapping(value)
            place = fields.get("contentBlockIndex")
            index = place if isinstance(place, int) else max(opened, default=0)
            if kind == "messageStart":
                role = fields.get("role") or role
            elif kind in ("contentBlockStart", "contentBlockDelta"):
                if kind == "contentBlockStart" or index not in opened:
                    tool = mapping(mapping(fields.get("start")).get("toolUse"))
                    opened[index] = {"toolUse": {**tool, "input": ""}} if tool else {}
                    blocks.append(opened[index])
                _add_converse_delta(opened[index], mapping(fields.get("delta")))
            elif kind == "messageStop":
                answer |= {key: fields[key] for key in ("stopReason", "additionalModelResponseFields") if key in fields}
            elif kind == "metadata":
                answer |= {key: fields[key] for key in ("usage", "metrics", "trace") if key in fields}
            elif kind.endswith("Exception"):
                answer["error"] = {"message": fields.get("message") or kind}
    for block in blocks:
        if isinstance(block.get("toolUse"), dict):
            block["toolUse"]["input"] = _parsed(block["toolUse"]["input"]) if block["toolUse"]["input"] else {}
    answer["output"] = {"message": {"role": role, "content": [block for block in blocks if block]}}
    return _cut(answer, answer.get("stopReason"))


def _add_converse_delta(block: dict[str, Any], delta: dict[str, Any]) -> None:
    thought = mapping(delta.get("reasoningContent"))
    if isinstance(delta.get("text"), str):
        block["text"] = block.get("text", "") + delta["text"]
    elif isinstance(thought.get("text"), str):
        text = block.setdefault("reasoningContent", {}).setdefault("reasoningText", {"text": ""})
        text["text"] += thought["text"]
    elif "redactedContent" in thought:
        block.setdefault("reasoningContent", {})["redactedContent"] = thought["redactedContent"]
    elif isinstance(mapping(delta.get("toolUse")).get("input"), str):
        tool = block.setdefault("toolUse", {"input": ""})
        tool["input"] += delta["toolUse"]["input"]


def _gemini(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """A GenerateContentResponse from its chunks: parts in order, the last finish reason and usage."""
    answer: dict[str, Any] = {}
    candidates: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        answer |= {key: value for key, value in chunk.items() if key != "candidates" and value is not None}
        pieces = chunk.get("candidates")
        for piece in pieces if isinstance(pieces, list) else []:
            if isinstance(piece, dict):
                place = piece.get("index")
                place = place if isinstance(place, int) else 0
                candidate = candidates.setdefault(place, {"index": place, "content": {"role": "model", "parts": []}})
                ended = piece.get("finishReason") or piece.get("finish_reason")
                candidate |= {"finishReason": ended} if ended else {}
                parts = mapping(piece.get("content")).get("parts")
                for part in parts if isinstance(parts, list) else []:
                    _add_part(candidate["content"]["parts"], part)
    answer["candidates"] = [candidate for _, candidate in sorted(candidates.items())]
    blocked = answer.get("promptFeedback") or answer.get("prompt_feedback")
    ended = bool(candidates) and all("finishReason" in candidate for candidate in candidates.values())
    return _cut(answer, ended or (blocked and not candidates))


def _add_part(parts: list[Any], part: Any) -> None:
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


METRICS = "amazon-bedrock-invocationMetrics"


def joined_chunks(chunks: list[dict[str, Any]]) -> tuple[dict[str, Any], Any] | None:
    """The body that InvokeModel gives, of chunks of InvokeModelWithResponseStream, and the reason why the model stopped (None:
    the stream was cut); None for chunks of other models than Llama, Titan, Mistral and OpenAI's (docs.aws.amazon.com/bedrock/
    latest/userguide/model-parameters.html). The last chunk has Bedrock's metrics."""
    if any("generation" in chunk for chunk in chunks):
        whole = _llama(chunks)
    elif any("outputText" in chunk for chunk in chunks):
        whole = _titan(chunks)
    elif any("outputs" in chunk for chunk in chunks):
        whole = _mistral(chunks)
    elif any("choices" in chunk for chunk in chunks):
        whole = _chat(chunks)
    else:
        return None
    metrics = next((mapping(chunk[METRICS]) for chunk in chunks if METRICS in chunk), None)
    return ({**whole[0], METRICS: metrics} if metrics else whole[0]), whole[1]


def _llama(chunks: list[dict[str, Any]]) -> tuple[dict[str, Any], Any]:
    last = {
        key: value
        for chunk in chunks
        for key in ("generation_token_count", "stop_reason")
        if (value := chunk.get(key)) is not None
    }
    asked = next((chunk["prompt_token_count"] for chunk in chunks if chunk.get("prompt_token_count") is not None), None)
    body = {"generation": _text(chunks, "generation"), "prompt_token_count": asked, **last}
    return body, last.get("stop_reason")


def _titan(chunks: list[dict[str, Any]]) -> tuple[dict[str, Any], Any]:
    results: dict[int, dict[str, Any]] = {}
    asked = None
    for chunk in chunks:
        if "outputText" in chunk:
            result = results.setdefault(_index(chunk), {"outputText": "", "tokenCount": None, "completionReason": None})
            result["outputText"] += _text([chunk], "outputText")
            result["completionReason"] = chunk.get("completionReason") or result["completionReason"]
            result["tokenCount"] = chunk.get("totalOutputTextTokenCount") or result["tokenCount"]
            asked = chunk.get("inputTextTokenCount") or asked
    in_order = [result for _, result in sorted(results.items())]
    return {"inputTextTokenCount": asked, "results": in_order}, all(result["completionReason"] for result in in_order)


def _mistral(chunks: list[dict[str, Any]]) -> tuple[dict[str, Any], Any]:
    outputs: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for place, piece in enumerate(objects(chunk.get("outputs"))):
            output = outputs.setdefault(place, {"text": "", "stop_reason": None})
            output["text"] += _text([piece], "text")
            output["stop_reason"] = piece.get("stop_reason") or output["stop_reason"]
    return {"outputs": list(outputs.values())}, all(each["stop_reason"] for each in outputs.values())


def _chat(chunks: list[dict[str, Any]]) -> tuple[dict[str, Any], Any]:
    """Chunks of OpenAI's API, or Mistral's with `message` and `stop_reason` instead of `delta` and `finish_reason`."""

    def as_openai(piece: dict[str, Any]) -> dict[str, Any]:
        delta, ended = piece.get("delta", piece.get("message")), piece.get("finish_reason", piece.get("stop_reason"))
        return {**piece, "delta": delta, "finish_reason": ended}

    alike = ({**chunk, "choices": list(map(as_openai, objects(chunk.get("choices"))))} for chunk in chunks)
    answer = joined_chat(alike, done=True)
    return answer, all(choice.get("finish_reason") for choice in answer["choices"])


def _text(chunks: list[dict[str, Any]], key: str) -> str:
    return "".join(chunk[key] for chunk in chunks if isinstance(chunk.get(key), str))


def _index(chunk: dict[str, Any]) -> int:
    return chunk["index"] if isinstance(chunk.get("index"), int) else 0

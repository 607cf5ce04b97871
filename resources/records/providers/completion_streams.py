"""Joins the chunks of InvokeModelWithResponseStream of Llama, Titan and Mistral into the body that InvokeModel gives.

    joined_chunks([{"generation": "Hel", "stop_reason": None}, {"generation": "lo", "stop_reason": "stop"}])
    # {"generation": "Hello", "stop_reason": "stop"}

Chunks as in docs.aws.amazon.com/bedrock/latest/userguide/model-parameters.html: of Llama {generation, prompt_token_count,
generation_token_count, stop_reason}, of Titan {outputText, index, totalOutputTextTokenCount, completionReason}, of Mistral
{outputs: [{text, stop_reason}]} or {choices: [{message: {content, tool_calls}, stop_reason}]}, of OpenAI's models
chat.completion.chunk. The last chunk has Bedrock's metrics.
"""

from __future__ import annotations

from typing import Any

from model_ops.chat_apis import mapping, objects
from resources.records.streams import joined

METRICS = "amazon-bedrock-invocationMetrics"


def joined_chunks(chunks: list[dict[str, Any]]) -> tuple[dict[str, Any], Any] | None:
    """The body, and the reason why the model stopped (None: the stream was cut); None for chunks of other models."""
    if any("generation" in chunk for chunk in chunks):
        found = _llama(chunks)
    elif any("outputText" in chunk for chunk in chunks):
        found = _titan(chunks)
    elif any("outputs" in chunk for chunk in chunks):
        found = _mistral(chunks)
    elif any("choices" in chunk for chunk in chunks):
        found = _chat(chunks)
    else:
        return None
    metrics = next((mapping(chunk[METRICS]) for chunk in chunks if METRICS in chunk), None)
    return ({**found[0], METRICS: metrics} if metrics else found[0]), found[1]


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
    body = {"inputTextTokenCount": asked, "results": [result for _, result in sorted(results.items())]}
    return body, all(result["completionReason"] for result in body["results"])


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
    answer = joined(
        [
            {
                **chunk,
                "choices": [
                    {
                        **piece,
                        "delta": piece.get("delta", piece.get("message")),
                        "finish_reason": piece.get("finish_reason", piece.get("stop_reason")),
                    }
                    for piece in objects(chunk.get("choices"))
                ],
            }
            for chunk in chunks
        ],
        done=True,
    )
    return answer, all(choice.get("finish_reason") for choice in answer["choices"])


def _text(chunks: list[dict[str, Any]], key: str) -> str:
    return "".join(chunk[key] for chunk in chunks if isinstance(chunk.get(key), str))


def _index(chunk: dict[str, Any]) -> int:
    return chunk["index"] if isinstance(chunk.get("index"), int) else 0

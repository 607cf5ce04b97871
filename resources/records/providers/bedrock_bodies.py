"""Bodies of models on Amazon Bedrock as an OpenAI chat, whichever API they are of: Converse's and Nova's, Anthropic's,
OpenAI's, or a prompt and its completion (docs.aws.amazon.com/bedrock/latest/userguide/model-parameters.html).
"""

from typing import Any

from model_ops.chat_apis import anthropic_api, finish_reason, mapping, objects, plus
from resources.records.providers import converse_api
from resources.records.providers.streams import METRICS

SPEAKERS = {"user": "user", "chatbot": "assistant", "system": "system", "tool": "tool"}
PROMPTS = ("prompt", "inputText", "message")
ANSWERS = ("text", "outputText", "generation", "completion")
REASONS = ("stop_reason", "completionReason", "finish_reason")
OTHER_KINDS = {
    **dict.fromkeys(("embedding", "embeddings", "embeddingsByType"), "embedding"),
    **dict.fromkeys(("images", "artifacts"), "image"),
}
"""Keys of responses that are no text, and what they are."""


def chat(request: dict[str, Any], response: dict[str, Any], operation: str) -> dict[str, Any]:
    """The call as an OpenAI chat; `skipped` names a call that is none. Raises UnknownBlock."""
    if is_converse(request, response, operation):
        return converse_api.chat(request, response)
    if "anthropic_version" in request or response.get("type") == "message":
        return anthropic_api.chat(request, response)
    if isinstance(request.get("messages"), list):
        return _openai(request, response)
    other = next((kind for key, kind in OTHER_KINDS.items() if key in response), None)
    return {"skipped": f"bedrock_{other}"} if other else _completion(request, response)


def is_converse(request: dict[str, Any], response: dict[str, Any], operation: str = "") -> bool:
    """Whether the bodies are of the Converse API, whose content blocks have no `type`."""
    if operation.startswith("Converse") or "message" in mapping(response.get("output")):
        return True
    first = next(iter(objects(request.get("messages"))), {})
    blocks = objects(first.get("content"))
    return bool({"inferenceConfig", "toolConfig", "modelId"} & request.keys()) or (bool(blocks) and "type" not in blocks[0])


def _openai(request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    usage = mapping(response.get("usage"))
    return {
        "messages": request["messages"],
        "tools": request.get("tools"),
        "params": {key: value for key, value in request.items() if key not in ("messages", "tools", "model")},
        "choices": [
            {
                **choice,
                "finish_reason": finish_reason(
                    choice.get("finish_reason", choice.get("stop_reason")), mapping(choice.get("message"))
                ),
            }
            for choice in objects(response.get("choices"))
        ],
        "request_id": response.get("id"),
        "error": response.get("error"),
        "usage": {
            "prompt": usage.get("prompt_tokens"),
            "completion": usage.get("completion_tokens"),
            "cached": mapping(usage.get("prompt_tokens_details")).get("cached_tokens"),
            "reasoning": mapping(usage.get("completion_tokens_details")).get("reasoning_tokens"),
        },
        "latency_ms": mapping(response.get(METRICS)).get("invocationLatency"),
    }


def _completion(request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    prompt = next((request[key] for key in PROMPTS if isinstance(request.get(key), str)), None)
    history = [
        {"role": SPEAKERS.get(str(turn.get("role")).lower()), "content": turn.get("message")}
        for turn in objects(request.get("chat_history"))
    ]
    outputs = [
        *objects(response.get("outputs")),
        *objects(response.get("results")),
        *objects(response.get("generations")),
        *objects(response.get("choices")),
    ] or [response]
    choices = []
    for each in outputs:
        text = next((each[key] for key in ANSWERS if isinstance(each.get(key), str)), None)
        if text is not None:
            message = {"role": "assistant", "content": text}
            ended = next((each[key] for key in REASONS if each.get(key)), response.get("stop_reason"))
            choices.append({"message": message, "finish_reason": finish_reason(ended, message)})
    config = mapping(request.get("textGenerationConfig"))
    params = {key: value for key, value in request.items() if key not in (*PROMPTS, "chat_history", "textGenerationConfig")}
    return {
        "messages": [*history, {"role": "user", "content": prompt}] if history else None,
        "prompt": prompt,
        "choices": choices,
        "params": {**params, **config},
        "error": response.get("error"),
        "usage": {
            "prompt": plus(response.get("prompt_token_count"), response.get("inputTextTokenCount")),
            "completion": plus(response.get("generation_token_count"), *(each.get("tokenCount") for each in outputs)),
        },
        "latency_ms": mapping(response.get(METRICS)).get("invocationLatency"),
    }

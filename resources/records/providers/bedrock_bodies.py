"""Bodies of models on Amazon Bedrock as an OpenAI chat, whichever API they are of: Converse's and Nova's, Anthropic's,
OpenAI's, or a prompt and its completion (docs.aws.amazon.com/bedrock/latest/userguide/model-parameters.html)."""

from typing import Any

from model_ops.chat_apis import (
    Turn,
    UnknownBlock,
    anthropic_api,
    chosen_tool,
    content_of,
    dialogue,
    finish_reason,
    function_tool,
    inline_url,
    json_text,
    mapping,
    media,
    objects,
    plus,
    without_none,
)
from resources.records.providers.streams import METRICS


def converse_chat(request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """The call as an OpenAI chat. Raises UnknownBlock."""
    asked = [turn("system", request["system"])] if request.get("system") else []
    asked += [turn(message.get("role"), message.get("content")) for message in objects(request.get("messages"))]
    spoken = mapping(mapping(response.get("output")).get("message"))
    answers = [turn("assistant", spoken["content"])] if isinstance(spoken.get("content"), list) else []
    messages, said = dialogue(asked, answers)
    left_out = [kind for each in (*asked, *answers) for kind in each.left_out]
    usage, tools = mapping(response.get("usage")), mapping(request.get("toolConfig"))
    read = usage.get("cacheReadInputTokens", usage.get("cacheReadInputTokenCount"))
    wrote = usage.get("cacheWriteInputTokens", usage.get("cacheWriteInputTokenCount"))
    return {
        "messages": messages if isinstance(request.get("messages"), list) else None,
        "choices": [
            {"message": message, "finish_reason": finish_reason(response.get("stopReason"), message)} for message in said
        ],
        "tools": [
            function_tool(spec.get("name"), spec.get("description"), mapping(spec.get("inputSchema")).get("json"))
            for spec in (mapping(tool.get("toolSpec")) for tool in objects(tools.get("tools")))
            if spec
        ]
        or None,
        "params": params_of(request) | ({"left_out": list(dict.fromkeys(left_out))} if left_out else {}),
        "usage": {
            "prompt": plus(usage.get("inputTokens"), read, wrote),
            "completion": usage.get("outputTokens"),
            "cached": read,
        },
        "request_id": mapping(response.get("ResponseMetadata")).get("RequestId"),
        "model": request.get("modelId"),
        "latency_ms": mapping(response.get("metrics")).get("latencyMs"),
        "error": response.get("error"),
        "metadata": mapping(request.get("requestMetadata")),
    }


def turn(role: Any, content: Any) -> Turn:
    """One message: a list of content blocks. Encrypted reasoning, and tools that the provider ran, are left out."""
    turn_of = Turn(role)
    for block in objects(content):
        block = {key: value for key, value in block.items() if value is not None}
        call, result = mapping(block.get("toolUse")), mapping(block.get("toolResult"))
        thought = mapping(mapping(block.get("reasoningContent")).get("reasoningText")).get("text")
        if "text" in block:
            turn_of.say(block["text"])
        elif call.get("type") or result.get("type"):
            turn_of.left_out.append(str(call.get("type") or result.get("type"))[:60])
        elif call:
            turn_of.call(call.get("toolUseId"), call.get("name"), call.get("input"))
        elif result:
            turn_of.result(result.get("toolUseId"), content_of([_part(each) for each in objects(result.get("content"))]))
        elif thought is not None:
            turn_of.think(thought)
        elif "reasoningContent" in block:
            turn_of.left_out.append("redactedContent")
        elif "cachePoint" not in block:
            turn_of.parts.append(_part(block))
    return turn_of


def _part(block: dict[str, Any]) -> dict[str, Any]:
    """A block that is no call, result or thought, as an OpenAI part. Guarded and cited texts, and search results, are text."""
    key = next((key for key, value in block.items() if value is not None), "")
    held = mapping(block.get(key))
    source = mapping(held.get("source"))
    if key == "text":
        return {"type": "text", "text": str(block["text"])}
    if key == "json":
        return {"type": "text", "text": json_text(block["json"])}
    if key == "guardContent" and "text" in held:
        return {"type": "text", "text": str(mapping(held["text"]).get("text") or "")}
    if key == "guardContent" and "image" in held:
        return _part({"image": held["image"]})
    if key == "citationsContent":
        return {"type": "text", "text": _texts(held.get("content"), "")}
    if key == "searchResult":
        texts = (held.get("title"), held.get("source"), _texts(held.get("content"), "\n"))
        return {"type": "text", "text": "\n".join(text for text in texts if isinstance(text, str))}
    if key == "document" and ("text" in source or "content" in source):
        inside = source.get("text")
        return {"type": "text", "text": inside if isinstance(inside, str) else _texts(source.get("content"), "\n")}
    if key in ("image", "document", "video", "audio"):
        media_type = f"{'application' if key == 'document' else key}/{held.get('format')}"
        uri = mapping(source.get("s3Location")).get("uri")
        return media(uri or inline_url(source.get("bytes"), media_type), media_type)
    raise UnknownBlock(f"a content block of the kind {key[:60]}")


def _texts(content: Any, between: str) -> str:
    return between.join(str(block.get("text") or "") for block in objects(content))


def params_of(request: dict[str, Any]) -> dict[str, Any]:
    config, more = mapping(request.get("inferenceConfig")), mapping(request.get("additionalModelRequestFields"))
    choice = mapping(mapping(request.get("toolConfig")).get("toolChoice"))
    return without_none(
        max_tokens=config.get("maxTokens", config.get("max_new_tokens")),
        temperature=config.get("temperature"),
        top_p=config.get("topP", config.get("top_p")),
        top_k=config.get("topK", config.get("top_k", more.get("top_k"))),
        stop=config.get("stopSequences"),
        thinking=more.get("thinking", more.get("reasoning_config", more.get("reasoningConfig"))),
        tool_choice=chosen_tool(next(iter(choice), None), mapping(choice.get("tool")).get("name")),
    )


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
        return converse_chat(request, response)
    if "anthropic_version" in request or response.get("type") == "message":
        return anthropic_api.chat(request, response)
    if isinstance(request.get("messages"), list):
        return _openai(request, response)
    other = next((kind for key, kind in OTHER_KINDS.items() if key in response), None)
    return {"skipped": f"bedrock_{other}"} if other else _completion(request, response)


def is_converse(request: dict[str, Any], response: dict[str, Any], operation: str = "") -> bool:
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

"""The Gemini API (generateContent) as an OpenAI chat. Fields in camelCase as in REST (ai.google.dev/api/generate-content) or
snake_case as in SDK dumps. A result answers the call of its name, in the order of the calls; calls without an id get one from
their name."""

import re
from collections import Counter
from typing import Any

from model_ops.chat_apis import (
    Turn,
    UnknownBlock,
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

LEFT_OUT = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""Tools that the provider ran: their results are in the answer."""
MARKS = {"thought", "thoughtSignature", "text", "partMetadata", "videoMetadata", "mediaResolution"}
"""Keys of a part that are no content of their own."""
ROLES = {"model": "assistant", "function": "tool"}
_INNER = re.compile(r"_([a-z])")


def chat(request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """The call as an OpenAI chat. Raises UnknownBlock."""
    request, response = camel(request), camel(response)
    config = camel(mapping(request.get("config")))
    generation = camel(mapping(request.get("generationConfig"))) or config
    counts: Counter[tuple[str, Any]] = Counter()
    asked = turns_of(request.get("systemInstruction") or config.get("systemInstruction"), counts, "system")
    asked += turns_of(request.get("contents"), counts)
    candidates = [camel(each) for each in objects(response.get("candidates"))]
    answers = [turn("assistant", mapping(each.get("content")).get("parts") or [], counts.copy()) for each in candidates]
    messages, said = dialogue(asked, answers)
    tools, remote = tools_of(request.get("tools") or config.get("tools"))
    left_out = [kind for each in (*asked, *answers) for kind in each.left_out] + remote
    tool_config = camel(mapping(request.get("toolConfig") or config.get("toolConfig")))
    choosing = camel(mapping(tool_config.get("functionCallingConfig")))
    return {
        "messages": messages if request.get("contents") is not None else None,
        "choices": [
            {"index": each.get("index"), "message": message, "finish_reason": finish_reason(each.get("finishReason"), message)}
            for each, message in zip(candidates, said, strict=True)
        ],
        "tools": tools,
        "params": params_of(generation, choosing) | ({"left_out": list(dict.fromkeys(left_out))} if left_out else {}),
        "usage": usage_of(camel(mapping(response.get("usageMetadata")))),
        "request_id": response.get("responseId"),
        "written_ts": response.get("createTime"),
        "model": response.get("modelVersion") or request.get("model"),
        "metadata": mapping(request.get("labels") or config.get("labels")),
        **refusal_of(response, candidates),
    }


def camel(value: dict[str, Any]) -> dict[str, Any]:
    """An object of the API with its keys in camelCase. Values inside are unchanged: arguments have keys of their own."""
    return {_INNER.sub(lambda match: match[1].upper(), key): each for key, each in value.items() if each is not None}


def turns_of(contents: Any, counts: Counter[tuple[str, Any]], speaker: str | None = None) -> list[Turn]:
    """Contents as turns. A content without role is the user's; `speaker` is the role of all."""
    turns = []
    for content in contents if isinstance(contents, list) else [] if contents is None else [contents]:
        whole = isinstance(content, dict) and ("parts" in content or "role" in content)
        role = (content.get("role") or "user") if whole else "user"
        parts = content.get("parts") if whole else content
        turns.append(turn(speaker or ROLES.get(role, role), parts if isinstance(parts, list) else [parts], counts))
    return turns


def turn(role: str, parts: list[Any], counts: Counter[tuple[str, Any]]) -> Turn:
    """One content. counts: how often each name was called, and answered, up to here."""
    turn_of = Turn(role)
    for written in parts:
        if written is None or isinstance(written, str):
            turn_of.say(written)
            continue
        part = camel(mapping(written))
        remote = [key for key in LEFT_OUT if key in part]
        if "functionCall" in part:
            call = camel(mapping(part["functionCall"]))
            if "partialArgs" in call or not call.get("name"):
                raise UnknownBlock("a functionCall in pieces (partialArgs)")
            turn_of.call(_id(call, "call", counts), call["name"], call.get("args"))
        elif "functionResponse" in part:
            result = camel(mapping(part["functionResponse"]))
            held = [_media(camel(each)) for each in objects(result.get("parts"))]
            text = {"type": "text", "text": json_text(result.get("response", {}))}
            turn_of.result(_id(result, "result", counts), content_of([text, *held]))
        elif remote:
            turn_of.left_out += remote
        elif part.get("thought"):
            turn_of.think(part.get("text"))
        elif part.keys() <= MARKS:
            turn_of.say(part.get("text"))
        else:
            turn_of.parts.append(_media(part))
    return turn_of


def _id(called: dict[str, Any], side: str, counts: Counter[tuple[str, Any]]) -> str:
    counts[side, called.get("name")] += 1
    return called.get("id") or f"call_{called.get('name')}_{counts[side, called.get('name')]}"


def _media(part: dict[str, Any]) -> dict[str, Any]:
    held, file = camel(mapping(part.get("inlineData"))), camel(mapping(part.get("fileData")))
    url = inline_url(held.get("data"), held.get("mimeType")) or file.get("fileUri")
    if url is None:
        raise UnknownBlock(f"a part with the keys {', '.join(sorted(map(str, part)))[:60]}")
    return media(url, held.get("mimeType") or file.get("mimeType"))


def tools_of(tools: Any) -> tuple[list[dict[str, Any]] | None, list[str]]:
    """The declared functions as OpenAI tools, and the names of tools that the provider runs (googleSearch, ...)."""
    functions, remote = [], []
    for tool in map(camel, objects(tools)):
        for declared in map(camel, objects(tool.get("functionDeclarations"))):
            schema = declared.get("parametersJsonSchema") or _json_schema(declared.get("parameters"))
            functions.append(function_tool(declared.get("name"), declared.get("description"), schema))
        remote += [key[:60] for key in tool if key != "functionDeclarations"]
    return functions or None, remote


def _json_schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_json_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else _json_schema(value)
        for key, value in schema.items()
        if value is not None
    }


def params_of(generation: dict[str, Any], choosing: dict[str, Any]) -> dict[str, Any]:
    """The generation config under OpenAI's names; thinkingConfig has no counterpart and is `thinking`."""
    schema = generation.get("responseJsonSchema") or _json_schema(generation.get("responseSchema"))
    form = {"type": "json_object"} if generation.get("responseMimeType") == "application/json" else None
    allowed = choosing.get("allowedFunctionNames")
    return without_none(
        temperature=generation.get("temperature"),
        top_p=generation.get("topP"),
        top_k=generation.get("topK"),
        max_tokens=generation.get("maxOutputTokens"),
        stop=generation.get("stopSequences"),
        n=generation.get("candidateCount"),
        seed=generation.get("seed"),
        presence_penalty=generation.get("presencePenalty"),
        frequency_penalty=generation.get("frequencyPenalty"),
        thinking=generation.get("thinkingConfig"),
        response_format={"type": "json_schema", "json_schema": {"schema": schema}} if schema else form,
        tool_choice=chosen_tool(
            str(choosing.get("mode") or "").rpartition(".")[2],
            allowed[0] if isinstance(allowed, list) and len(allowed) == 1 else None,
        ),
    )


def usage_of(usage: dict[str, Any]) -> dict[str, Any]:
    """Token counts. candidatesTokenCount is without thoughts, promptTokenCount with cached tokens."""
    return {
        "prompt": plus(usage.get("promptTokenCount"), usage.get("toolUsePromptTokenCount")),
        "completion": plus(usage.get("candidatesTokenCount"), usage.get("thoughtsTokenCount")),
        "cached": usage.get("cachedContentTokenCount"),
        "reasoning": usage.get("thoughtsTokenCount"),
    }


def refusal_of(response: dict[str, Any], candidates: list[Any]) -> dict[str, Any]:
    """The error of a failed request. A blocked prompt has no candidates."""
    blocked = camel(mapping(response.get("promptFeedback"))).get("blockReason")
    if blocked and not candidates:
        reason = str(blocked).rpartition(".")[2]
        return {"error": f"the prompt was blocked: {reason}", "finish_reason": "content_filter"}
    return {"error": response.get("error")}

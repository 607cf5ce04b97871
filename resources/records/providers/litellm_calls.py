"""Calls that LiteLLM logs in the form of another API than OpenAI's: its /v1/messages, generateContent and pass-through routes
(whose request body is the text of one user message). DuckDB calls provider_chat_of. It never raises: for a call without
messages the result is {}.
"""

import json
from typing import Any

from model_ops.chat_apis import UnknownBlock, anthropic_api, body, json_text, mapping, objects
from resources.records.providers import bedrock_bodies, gemini_api


def provider_chat_of(text: str) -> str:
    """The chat of a call of another API, as JSON text."""
    try:
        call = json.loads(text)
        return json_text(
            _chat(
                str(call.get("call_type") or ""),
                call.get("messages"),
                mapping(call.get("parameters")),
                mapping(call.get("response")),
            )
        )
    except UnknownBlock as unknown:
        return json_text({"code": "unknown_block", "words": f"{unknown} is not known"})
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError):
        return "{}"


def _chat(call_type: str, messages: Any, parameters: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    request = _request(call_type, messages, parameters)
    asked = objects(request.get("messages"))
    if "contents" in request:
        chat = gemini_api.chat(request, response)
    elif not asked:
        return {}
    elif any(message.get("role") == "tool" or "tool_calls" in message for message in asked):
        chat = {"messages": request["messages"], "tools": request.get("tools")}  # LiteLLM translated the request
    elif bedrock_bodies.is_converse(request, response):
        chat = bedrock_bodies.chat(request, response, "Converse")
    elif call_type == "anthropic_messages" or response.get("type") == "message" or anthropic_api.is_request(request):
        chat = anthropic_api.chat(request, response)
    else:
        chat = {"messages": request["messages"], "tools": request.get("tools")}
    chat["choices"] = chat.get("choices") or [_written_alike(choice) for choice in objects(response.get("choices"))]
    return {name: chat.get(name) for name in ("messages", "choices", "tools", "usage", "params")}


def _request(call_type: str, messages: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """The body of the request."""
    only = messages[0] if isinstance(messages, list) and len(messages) == 1 else None
    if "pass" in call_type and isinstance(only, dict) and (sent := body(only.get("content"))):
        return sent
    if "pass" in call_type and isinstance(only, dict) and str(only.get("content")).lstrip().startswith('{"'):
        raise UnknownBlock("the request's body, which breaks off,")
    if isinstance(messages, dict):
        return messages
    if "generate_content" in call_type or any("parts" in message for message in objects(messages)):
        return {"contents": messages, "config": {**mapping(parameters.get("config")), **parameters}}
    return {**parameters, "messages": messages}


def _written_alike(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice whose calls' arguments are written as those of the history: a later request repeats them as objects."""
    message = mapping(choice.get("message"))
    calls = [{**call, "function": _alike(mapping(call.get("function")))} for call in objects(message.get("tool_calls"))]
    return {**choice, "message": {**message, "tool_calls": calls}} if calls else choice


def _alike(function: dict[str, Any]) -> dict[str, Any]:
    try:
        return {**function, "arguments": json_text(json.loads(function["arguments"]))}
    except (KeyError, TypeError, ValueError, RecursionError):
        return function

"""Anthropic's Messages API as an OpenAI chat.

Block types as in anthropic-sdk-python, types/beta/beta_content_block_param.py; usage as in types/usage.py."""

import json
import re
from typing import Any

from model_ops.chat_apis.blocks import (
    Turn,
    UnknownBlock,
    chosen_tool,
    content_of,
    dialogue,
    finish_reason,
    function_tool,
    inline_url,
    mapping,
    media,
    objects,
    plus,
    without_none,
)

LEFT_OUT = re.compile(r"redacted_thinking|server_tool_use|mcp_tool_use|compaction|fallback|.+_tool_result")
"""Encrypted thoughts, and tools that the provider ran: their results are in the answer, as in OpenAI's Responses API."""
CLIENT_TOOLS = re.compile(r"(bash|text_editor|computer|memory|browser)_[0-9]+")
"""Tools that Anthropic defines and the client runs: they have a name and no schema."""
BLOCKS = frozenset(("tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"))
"""Types of content blocks that OpenAI's API has under other names or lacks."""
_SESSION = re.compile(r"(.*)_session_([0-9A-Za-z-]+)")


def chat(request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """The call as an OpenAI chat. Raises UnknownBlock."""
    asked = turns_of(request.get("messages"), request.get("system"))
    answers = [turn("assistant", response["content"])] if isinstance(response.get("content"), list) else []
    messages, said = dialogue(asked, answers)
    tools, remote = tools_of(request.get("tools"))
    left_out = [kind for each in (*asked, *answers) for kind in each.left_out] + remote
    usage = mapping(response.get("usage"))
    metadata = mapping(request.get("metadata"))
    user, session = user_of(metadata.get("user_id"))
    return {
        "messages": messages if isinstance(request.get("messages"), list) else None,
        "choices": [
            {"message": message, "finish_reason": finish_reason(response.get("stop_reason"), message)} for message in said
        ],
        "tools": tools,
        "params": params_of(request) | ({"left_out": list(dict.fromkeys(left_out))} if left_out else {}),
        "usage": {
            "prompt": plus(
                *(usage.get(name) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"))
            ),
            "completion": usage.get("output_tokens"),
            "cached": usage.get("cache_read_input_tokens"),
            "reasoning": mapping(usage.get("output_tokens_details")).get("thinking_tokens"),
        },
        "request_id": response.get("id"),
        "alias_id": response.get("request_id"),
        "model": response.get("model") or request.get("model"),
        "error": response.get("error"),
        "metadata": metadata,
        "session_id": session,
        "user_id": user,
    }


def is_request(request: dict[str, Any]) -> bool:
    """Whether a request with messages has keys or blocks that Anthropic's API has and OpenAI's lacks."""
    if {"system", "anthropic_version", "stop_sequences", "thinking"} & request.keys():
        return True
    blocks = [block for message in objects(request.get("messages")) for block in objects(message.get("content"))]
    return any("input_schema" in tool for tool in objects(request.get("tools"))) or any(
        block.get("type") in BLOCKS for block in blocks
    )


def turns_of(messages: Any, system: Any = None) -> list[Turn]:
    """A request's messages, the system prompt first."""
    before = [turn("system", system)] if system else []
    return before + [turn(message.get("role"), message.get("content")) for message in objects(messages)]


def messages_of(messages: Any, system: Any = None) -> list[dict[str, Any]]:
    """The chat messages of a request. Raises UnknownBlock."""
    return dialogue(turns_of(messages, system), [])[0]


def turn(role: Any, content: Any) -> Turn:
    """One message: a text, or a list of content blocks."""
    said = Turn(role)
    if isinstance(content, str):
        said.say(content)
        return said
    for block in objects(content):
        kind = block.get("type")
        if kind == "text":
            said.say(block.get("text"))
        elif kind == "thinking":
            said.think(block.get("thinking"))
        elif kind == "tool_use":
            said.call(block.get("id"), block.get("name"), block.get("input"))
        elif kind == "tool_result":
            inside = block.get("content")
            inside = content_of([_part(each) for each in objects(inside)]) if isinstance(inside, list) else inside or ""
            said.result(block.get("tool_use_id"), inside)
        elif kind == "mid_conv_system":
            said.instructions.append(_texts(block.get("content")))
        elif isinstance(kind, str) and LEFT_OUT.fullmatch(kind):
            said.left_out.append(kind)
        else:
            said.parts.append(_part(block))
    return said


def _part(block: dict[str, Any]) -> dict[str, Any]:
    """A block that is no call, result or thought, as an OpenAI part. Documents of text, and search results, are text."""
    kind, source = block.get("type"), mapping(block.get("source"))
    media_type = "image/" if kind == "image" else source.get("media_type")
    if kind == "text":
        return {"type": "text", "text": str(block.get("text") or "")}
    if kind == "document" and source.get("type") in ("text", "content"):
        inside = source.get("data", source.get("content"))
        return {"type": "text", "text": inside if isinstance(inside, str) else _texts(inside)}
    if kind == "document" and "file_id" in source:
        return {"type": "file", "file": {"file_id": source["file_id"]}}
    if kind in ("image", "document"):
        url = source.get("url") or source.get("file_id") or inline_url(source.get("data"), source.get("media_type"))
        return media(url, media_type if kind == "image" else None)
    if kind == "search_result":
        texts = (block.get("title"), block.get("source"), _texts(block.get("content")))
        return {"type": "text", "text": "\n".join(text for text in texts if isinstance(text, str))}
    if kind == "container_upload":
        return {"type": "file", "file": {"file_id": block.get("file_id")}}
    if kind == "tool_reference":
        return {"type": "text", "text": str(block.get("tool_name"))}
    raise UnknownBlock(f"a content block of the type {str(kind)[:60]}")


def _texts(content: Any) -> str:
    return "\n".join(str(block.get("text") or "") for block in objects(content))


def tools_of(tools: Any) -> tuple[list[dict[str, Any]] | None, list[str]]:
    """The request's tools in the OpenAI shape, and the types of those that the provider runs."""
    functions, remote = [], []
    for tool in objects(tools):
        kind = tool.get("type")
        if "input_schema" in tool or kind in (None, "custom") or CLIENT_TOOLS.fullmatch(str(kind)):
            functions.append(function_tool(tool.get("name"), tool.get("description"), tool.get("input_schema")))
        else:
            remote.append(str(kind)[:60])
    return functions or None, remote


def params_of(request: dict[str, Any]) -> dict[str, Any]:
    """The sampling parameters under OpenAI's names; `thinking` has no counterpart and stays."""
    choice, output = mapping(request.get("tool_choice")), mapping(request.get("output_config"))
    form = mapping(output.get("format") or request.get("output_format"))
    return without_none(
        **{name: request.get(name) for name in ("max_tokens", "temperature", "top_p", "top_k", "stream", "thinking")},
        stop=request.get("stop_sequences"),
        reasoning_effort=output.get("effort"),
        response_format={"type": "json_schema", "json_schema": {"schema": form["schema"]}} if "schema" in form else None,
        tool_choice=chosen_tool(choice.get("type"), choice.get("name")),
        parallel_tool_calls=False if choice.get("disable_parallel_tool_use") else None,
    )


def user_of(user_id: Any) -> tuple[str | None, str | None]:
    """User and session in metadata.user_id. Claude Code writes user_<hash>_account_<id>_session_<id>, or an object as text."""
    if not isinstance(user_id, str) or not user_id:
        return None, None
    if user_id.startswith("{"):
        try:
            ids = mapping(json.loads(user_id))
        except (ValueError, RecursionError):
            return user_id, None
        return ids.get("account_uuid") or ids.get("device_id") or user_id, ids.get("session_id")
    match = _SESSION.fullmatch(user_id)
    return (match[1], match[2]) if match else (user_id, None)

"""Turns a call of OpenAI's Responses API into chat messages, and joins the events of a streamed one into its response. Input
items become the request, output items one answer; calls of tools that the provider runs (web_search_call) are left out. DuckDB
calls it, so it never raises: for other records, the result lacks messages or a message. Items and events as in openai-python's
types/responses."""

import json
from typing import Any

from model_ops.chat_apis.blocks import CUT, function_tool, json_text

PARTS = {"input_text", "output_text", "text", "summary_text", "reasoning_text"}


def chat_of(text: str) -> str:
    """The messages, the answer, its finish_reason and usage, as JSON text."""
    try:
        call = json.loads(text)
        response = call.get("response") or {}
        asked = _messages(_listed(call.get("input")))
        given = call.get("instructions") or response.get("instructions")  # a stored prompt's are in the response, as items
        if isinstance(given, str) and given:
            asked.insert(0, {"role": "system", "content": given})
        elif isinstance(given, list):
            asked = _messages(_listed(given)) + asked
        answer, ended = answer_of(response)
        return json_text(
            {"messages": asked or None, "message": answer, "finish_reason": ended, "usage": _usage(response.get("usage") or {})}
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return "{}"


def answer_of(response: dict[str, Any]) -> tuple[dict[str, Any] | None, str | None]:
    """The answer of a response, and why it ended."""
    items = _listed(response.get("output"))
    answer = _one(_messages([{"role": "assistant", **item} if item.get("type") == "message" else item for item in items]))
    return answer, _ended(response, answer)


def messages_of(items: Any, instructions: Any = None) -> list[dict[str, Any]]:
    """The chat messages of a request's `input`, with its instructions before them."""
    system = [{"role": "system", "content": instructions}] if isinstance(instructions, str) and instructions else []
    return [*system, *_messages(_listed(items))]


def tools_of(tools: Any) -> list[dict[str, Any]] | None:
    functions = [tool for tool in _listed(tools) if tool.get("type") == "function"]
    return [function_tool(each.get("name"), each.get("description"), each.get("parameters")) for each in functions] or None


def _listed(items: Any) -> list[dict[str, Any]]:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if isinstance(items, dict):
        return [items]
    return [item for item in items or [] if isinstance(item, dict)]


def _messages(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type")
        if kind in ("function_call", "custom_tool_call"):
            custom = kind == "custom_tool_call"  # its input is a text, also where that is JSON
            arguments = json_text({"input": item.get("input") or ""}) if custom else item.get("arguments")
            _spoken_on(
                messages,
                {
                    "tool_calls": [
                        {
                            "id": item.get("call_id") or item.get("id"),
                            "type": "function",
                            "function": {"name": item.get("name"), "arguments": "{}" if arguments is None else arguments},
                        }
                    ]
                },
            )
        elif kind in ("function_call_output", "custom_tool_call_output"):
            output = item.get("output")
            content = output if isinstance(output, str) else _content(output)
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        elif kind == "reasoning":
            thought = "\n".join(
                part["text"]
                for key in ("content", "summary")
                for part in item.get(key) or []
                if isinstance(part.get("text"), str)
            )
            if thought:
                _spoken_on(messages, {"reasoning_content": thought})
        elif item.get("role") == "assistant":
            refusals = [
                part["refusal"]
                for part in item.get("content") or []
                if isinstance(part, dict) and isinstance(part.get("refusal"), str)
            ]
            said = {"content": _content(item.get("content"))}
            _spoken_on(messages, said | {"refusal": "\n".join(refusals)} if refusals else said)
        elif item.get("role") is not None:
            messages.append({"role": item["role"], "content": _content(item.get("content"))})
    return messages


def _spoken_on(messages: list[dict[str, Any]], more: dict[str, Any]) -> None:
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or ("content" in more and last["content"] is not None):
        last = {"role": "assistant", "content": None}
        messages.append(last)
    if "tool_calls" in more:
        more = {"tool_calls": [*last.get("tool_calls", []), *more["tool_calls"]]}
    last |= more


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    parts = [_part(part) for part in content if not (isinstance(part, dict) and part.get("type") == "refusal")]
    if parts and all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        return "".join(str(part.get("text") or "") for part in parts)
    return parts or None


def _part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in PARTS:
        return {"type": "text", "text": part.get("text")}
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url") or part.get("file_id")}}
    if kind == "input_file":
        return {"type": "file", "file": {key: value for key, value in part.items() if key != "type"}}
    return part


def _one(said: list[dict[str, Any]]) -> dict[str, Any] | None:
    said = [message for message in said if message["role"] == "assistant"]
    if not said:
        return None
    answer = dict(said[0])
    for message in said[1:]:
        texts = [each["content"] for each in (answer, message) if isinstance(each["content"], str)]
        calls = [*answer.get("tool_calls", []), *message.get("tool_calls", [])]
        answer |= {key: value for key, value in message.items() if key != "content"} | ({"tool_calls": calls} if calls else {})
        answer["content"] = "\n\n".join(texts) if texts else None
    return answer


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "cached_tokens": (usage.get("input_tokens_details") or {}).get("cached_tokens"),
        "reasoning_tokens": (usage.get("output_tokens_details") or {}).get("reasoning_tokens"),
    }


def _ended(response: dict[str, Any], answer: dict[str, Any] | None) -> str | None:
    cut = any(item.get("status") == "incomplete" for item in _listed(response.get("output")))
    status = response.get("status") or ("incomplete" if cut else None)
    if status not in (None, "completed"):  # incomplete, failed, cancelled, in_progress, queued
        return (response.get("incomplete_details") or {}).get("reason") or status
    if answer is None:
        return None
    return "tool_calls" if answer.get("tool_calls") else "stop"


NEEDLES = (
    "response.created", "response.in_progress", "response.output", "response.completed", "response.incomplete",
    "response.failed", "response.function_call",
)  # fmt: skip
"""A record without any of these holds no such stream."""
ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
PIECES = {
    "output_text": ("content", "output_text", "text"), "refusal": ("content", "refusal", "refusal"),
    "reasoning_text": ("content", "reasoning_text", "text"), "reasoning_summary_text": ("summary", "summary_text", "text"),
}  # fmt: skip
"""For the name of a delta: the list of its item, the type of the part in it, and the part's key."""
WHOLE = {"function_call_arguments": ("function_call", "arguments"), "custom_tool_call_input": ("custom_tool_call", "input")}
"""For the name of a delta: the type of its item, and the item's key."""


def is_event(value: Any) -> bool:
    return isinstance(value, dict) and str(value.get("type")).startswith("response.")


def joined_response(events: list[dict[str, Any]], done: bool = False) -> dict[str, Any]:
    """The response of a stream's events, in order. done: the stream ends with [DONE]."""
    answer: dict[str, Any] = {"object": "response"}
    items: dict[Any, dict[str, Any]] = {}
    ended = done
    for event in events:
        kind, key = str(event.get("type")), event.get("item_id") or event.get("output_index", 0)
        item = event.get("item")
        if isinstance(event.get("response"), dict):
            answer |= {name: value for name, value in event["response"].items() if value is not None}
            ended = ended or kind in ENDS
        elif kind in ("response.output_item.added", "response.output_item.done") and isinstance(item, dict):
            items[item.get("id") or key] = dict(item)
        elif kind == "error":
            answer["error"] = event.get("error") or {"message": event.get("message") or "error"}
        elif isinstance(event.get("delta"), str):
            _add_piece(items.setdefault(key, {}), kind.removeprefix("response.").removesuffix(".delta"), event)
    answer["output"] = answer.get("output") or [item for item in items.values() if item.get("type")]
    if not ended and "error" not in answer:
        answer["error"] = {"message": CUT}
    return answer


def _add_piece(item: dict[str, Any], name: str, event: dict[str, Any]) -> None:
    if name in WHOLE:
        kind, key = WHOLE[name]
        item["type"] = item.get("type") or kind
        item[key] = (item.get(key) or "") + event["delta"]
    elif name in PIECES:
        held, kind, key = PIECES[name]
        item["type"] = item.get("type") or ("reasoning" if name.startswith("reasoning") else "message")
        parts = [part for part in item.get(held) or [] if isinstance(part, dict)]
        place = event.get("content_index", event.get("summary_index", 0))
        if not isinstance(place, int) or place >= len(parts):
            parts.append({"type": kind})
            place = -1
        parts[place][key] = (parts[place].get(key) or "") + event["delta"]
        item[held] = parts

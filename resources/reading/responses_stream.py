"""Joins the events of a streamed call of OpenAI's Responses API into the response that the same call gives without streaming.

    joined_response([{"type": "response.output_text.delta", ...}, ..., {"type": "response.completed", "response": {...}}])

The response of the last event (completed, incomplete, failed) counts; where its output is missing or empty, the items of
response.output_item.done, else the pieces of the deltas. Events as in openai-python's types/responses
(response_stream_event.py). A stream without its last event was cut: it has an `error`, as in `streams`.
"""

from __future__ import annotations

from typing import Any

from resources.reading.streams import CUT

NEEDLES = ("response.created", "response.in_progress", "response.output", "response.completed", "response.incomplete",
           "response.failed", "response.function_call")
"""A record without any of these holds no such stream."""
ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
PIECES = {"output_text": ("content", "output_text", "text"), "refusal": ("content", "refusal", "refusal"),
          "reasoning_text": ("content", "reasoning_text", "text"),
          "reasoning_summary_text": ("summary", "summary_text", "text")}
"""For the name of a delta: the list of its item, the type of the part in it, and the part's key."""
WHOLE = {"function_call_arguments": ("function_call", "arguments"), "custom_tool_call_input": ("custom_tool_call", "input")}
"""For the name of a delta: the type of its item, and the item's key."""


def is_event(value: Any) -> bool:
    """Whether a parsed value is an event of such a stream."""
    return isinstance(value, dict) and str(value.get("type")).startswith("response.")


def joined_response(found: list[dict[str, Any]], done: bool = False) -> dict[str, Any]:
    """The response of a stream's events, in order. done: the stream ends with [DONE]."""
    answer: dict[str, Any] = {"object": "response"}
    items: dict[Any, dict[str, Any]] = {}
    ended = done
    for event in found:
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

"""Reads a chat completion: its message in the form of datasets, its usage, or what is wrong with it."""

import json
from dataclasses import dataclass, field
from typing import Any

NO_REPLY, BUSY = "no reply", "busy"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What every reply of a server says."""

    failure: str = ""
    """Kind of failure; "" for a reply that can be used."""
    reason: str = ""
    """Of NO_REPLY the name of the error, of BUSY the HTTP status."""
    retryable: bool = False
    """Whether another attempt may succeed."""

    @property
    def unreachable(self) -> bool:
        return self.failure in (NO_REPLY, BUSY)

    @property
    def why(self) -> str:
        """The failure for a message, such as `no reply: NewConnectionError` or `HTTP 503`."""
        return self.reason if self.failure == BUSY else ": ".join(filter(None, (self.failure, self.reason)))


@dataclass(frozen=True, kw_only=True)
class ChatReply(Reply):
    """The answer to one request for a chat completion."""

    message: dict[str, Any] | None = None
    """The assistant's message in the form of datasets; None where there is a failure."""
    text: str | None = None
    """Text of the message, also of one that was cut; None without a text."""
    finish_reason: str = ""
    prompt_tokens: int = 0
    answer_tokens: int = 0
    cost: float = 0.0
    """Of all attempts, in the currency of the prices."""
    choice: dict[str, Any] = field(default_factory=dict)
    """The choice as the server sent it, with its log-probabilities."""


def read_chat(content: bytes) -> ChatReply:
    """The completion in a reply's content."""
    try:
        reply = json.loads(content)
    except (ValueError, RecursionError):
        html = content.lstrip()[:200].lower().startswith((b"<!doctype", b"<html", b"<head", b"<?xml"))
        return ChatReply(failure="HTML instead of JSON" if html else "not JSON", retryable=True)
    usage = reply.get("usage") if isinstance(reply, dict) else None
    prompt_tokens, answer_tokens = (_count(usage, name) for name in ("prompt_tokens", "completion_tokens"))

    def failed(failure: str, finish_reason: str = "", text: str | None = None, retryable: bool = False) -> ChatReply:
        return ChatReply(
            failure=failure,
            retryable=retryable,
            text=text,
            finish_reason=finish_reason,
            prompt_tokens=prompt_tokens,
            answer_tokens=answer_tokens,
        )

    try:
        choice = reply["choices"][0]
        said, reason = choice["message"], str(choice.get("finish_reason") or "stop")
        text, calls = _text_of(said.get("content")), said.get("tool_calls") or []
    except (KeyError, IndexError, TypeError, AttributeError):
        return failed("no choices", retryable=not answer_tokens)
    if not (text is None or isinstance(text, str)) or not isinstance(calls, list) or not all(map(_is_call, calls)):
        return failed("no choices", reason, retryable=not answer_tokens)
    if reason == "length":
        return failed("cut by max_tokens", reason, text)
    if reason == "content_filter":
        return failed("filtered by the server", reason, text)
    if not (text or "").strip() and not calls:
        return failed("empty", reason, text)
    thoughts = next((said[name] for name in ("reasoning_content", "reasoning") if isinstance(said.get(name), str)), "")
    message: dict[str, Any] = {"role": "assistant", "content": text or ""}
    if thoughts.strip():
        message["reasoning_content"] = thoughts.strip()
    if calls:
        message["tool_calls"] = [
            {
                "id": call.get("id"),
                "type": "function",
                "function": {"name": call["function"]["name"], "arguments": call["function"].get("arguments") or "{}"},
            }
            for call in calls
        ]
    return ChatReply(
        message=message,
        text=text,
        finish_reason=reason,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        choice=choice,
    )


def _text_of(content: Any) -> Any:
    """The text of a message's content, which some servers give as a list of parts; anything else as it is."""
    parts = content if isinstance(content, list) else []
    if parts and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        return "".join(part["text"] for part in parts)
    return content


def _is_call(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("function"), dict) and isinstance(call["function"].get("name"), str)


def _count(usage: Any, name: str) -> int:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int and count >= 0 else 0

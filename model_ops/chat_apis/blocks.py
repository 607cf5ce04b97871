"""Turns of content blocks as OpenAI messages: what Anthropic, Gemini and Bedrock's Converse have in common. There, a tool's
result is a block of the user's turn; in OpenAI's API it is a message of role tool, right after the calls. What a message cannot
hold is named in `left_out`; `UnknownBlock` is raised for what no rule knows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


def json_text(value: Any, separators: tuple[str, str] = (",", ":")) -> str:
    """The value as JSON, lone surrogates as U+FFFD. Raises ValueError for integers of over 4,300 digits, RecursionError."""
    text = json.dumps(value, ensure_ascii=False, separators=separators)
    return text if _is_whole(text) else whole(text)


def whole(text: str) -> str:
    """The text with lone surrogates replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def mend_json(text: str) -> str | None:
    """JSON text with lone surrogates replaced; None for invalid JSON, and for JSON without any."""
    try:
        written = json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return None
    return None if _is_whole(written) else whole(written)


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


SPELLINGS = {
    "stop": """stop end_turn stop_sequence stop_criteria_met 1 finish finished complete completed success eos eos_token eosfound
        end_of_text end_of_turn endoftext stopstringfound word end done normal""",
    "tool_calls": "tool_calls tool_use tool_call toolcalls tool function_call function_calls",
    "length": """length 2 max_tokens max_token max_length max_output_tokens maxpredictedtokensreached contextlengthreached
        token_limit limit model_length model_context_window_exceeded context_length_exceeded max_tokens_reached""",
    "content_filter": """content_filter content_filtered refusal refused safety recitation blocklist prohibited_content spii
        image_safety image_prohibited_content image_recitation model_armor guardrail_intervened sensitive
        error_toxic blocked""",
}
MEANS = {spelling: reason for reason, spellings in SPELLINGS.items() for spelling in spellings.split()}
"""OpenAI's reason by every known spelling, in lower case and with underscores; 1 and 2 are the numbers of Gemini's protobuf."""
WHOLE = [spelling for spelling, reason in MEANS.items() if reason in ("stop", "tool_calls")]
"""Spellings of reasons that leave an answer whole."""
ABSENT = ("", "none", "null")
CUT = "stream_cut: the stream ends without a finish_reason and without [DONE]"
"""The error of such a stream."""


def finish_reason_of(written: str | int | None) -> str | None:
    """OpenAI's reason; a reason that is not listed in lower case; None for none. SGLang's is an object with a type."""
    if isinstance(written, bool) or not isinstance(written, str | int):
        return None
    reason = re.sub(r'^\{"type": ?"(\w+)".*', r"\1", str(written).strip()).rpartition(".")[2].lower()
    reason = reason.replace("-", "_").replace(" ", "_").removeprefix("finish_reason_")
    return None if reason in ABSENT else MEANS.get(reason, reason)


class UnknownBlock(ValueError):
    """A content block of a kind that no rule knows. Its text names the kind."""


@dataclass
class Turn:
    """What one side said at a time."""

    role: str | None
    parts: list[dict[str, Any]] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    instructions: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def say(self, text: Any) -> None:
        if isinstance(text, str) and text:
            self.parts.append({"type": "text", "text": text})

    def think(self, text: Any) -> None:
        if isinstance(text, str) and text:
            self.thoughts.append(text)

    def call(self, call_id: Any, name: Any, arguments: Any) -> None:
        """Adds a tool call. arguments: an object, or the text of one that a cut stream left incomplete."""
        written = arguments if isinstance(arguments, str) else json_text({} if arguments is None else arguments)
        self.calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": written}})

    def result(self, call_id: Any, content: Any) -> None:
        """Adds what a tool returned, as the content of a message."""
        self.results.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def messages(self) -> list[dict[str, Any]]:
        """The turn as messages: results, then what was said, then instructions of the system."""
        spoken = bool(self.parts or self.calls or self.thoughts) or not (self.results or self.instructions)
        return [
            *self.results,
            *([self.message()] if spoken else []),
            *({"role": "system", "content": text} for text in self.instructions),
        ]

    def message(self) -> dict[str, Any]:
        """What was said, as one message. Texts of an answer are joined; elsewhere several texts stay parts."""
        texts = all(part["type"] == "text" for part in self.parts)
        content: Any = self.parts
        if not self.parts:
            content = None if self.calls else ""
        elif texts and (len(self.parts) == 1 or self.role == "assistant"):
            content = "".join(part["text"] for part in self.parts)
        message = {"role": self.role, "content": content}
        if self.calls:
            message["tool_calls"] = self.calls
        if self.thoughts:
            message["reasoning_content"] = "\n".join(self.thoughts)
        return message

    def followed_by(self, more: Turn) -> Turn:
        """The turn that goes on with `more`."""
        return Turn(
            self.role,
            *(
                [*getattr(self, name), *getattr(more, name)]
                for name in ("parts", "thoughts", "calls", "results", "instructions", "left_out")
            ),
        )


def content_of(parts: Sequence[dict[str, Any]]) -> Any:
    """Parts as the content of a message: one text is a string."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else list(parts)


def dialogue(turns: Sequence[Turn], answers: Iterable[Turn]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages of a request and of its answers; one goes on from the assistant's turn that ends the request, if any."""
    answers = list(answers)
    begun = turns[-1] if answers and turns and turns[-1].role == "assistant" else None
    asked = turns if begun is None else turns[:-1]
    said = answers if begun is None else [begun.followed_by(answer) for answer in answers]
    return [message for turn in asked for message in turn.messages()], [answer.message() for answer in said]


def media(url: Any, media_type: Any) -> dict[str, Any]:
    """A picture or file as an OpenAI part."""
    if isinstance(media_type, str) and media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"file_data": url}}


def inline_url(encoded: Any, media_type: Any) -> Any:
    """Base64 as a data URL; the reference that replaced it (`inline_media`) as it is."""
    if not isinstance(encoded, str) or encoded.startswith("sha256:"):
        return encoded
    return f"data:{media_type or 'application/octet-stream'};base64,{encoded}"


def finish_reason(given: Any, message: dict[str, Any]) -> str | None:
    reason = finish_reason_of(given)
    return "tool_calls" if reason == "stop" and message.get("tool_calls") else reason


def chosen_tool(mode: Any, name: Any = None) -> Any:
    """OpenAI's tool_choice for a mode (auto, any, none, tool) and the one tool allowed."""
    mode = str(mode or "").lower()
    if mode in ("tool", "any") and name:
        return {"type": "function", "function": {"name": name}}
    return {"any": "required", "auto": "auto", "none": "none"}.get(mode)


def function_tool(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """A tool in the OpenAI shape."""
    return {"type": "function", "function": without_none(name=name, description=description, parameters=parameters)}


def without_none(**values: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def plus(*counts: Any) -> int | None:
    """The sum of token counts; None without any."""
    known = [count for count in counts if isinstance(count, int)]
    return sum(known) if known else None


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; [] for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def mapping(value: Any) -> dict[str, Any]:
    """The object; {} for anything else."""
    return value if isinstance(value, dict) else {}


def bodies(record: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return (body(record.get("request", record.get("full_request"))), body(record.get("response", record.get("full_response"))))


def is_pair(record: dict[str, Any]) -> bool:
    return ("request" in record and "response" in record) or ("full_request" in record and "full_response" in record)


def body(value: Any) -> dict[str, Any]:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}

"""Messages and tools in the attributes of an OTLP span or log record, in the OpenAI shape. Attributes are plain JSON values by
name."""

import json
import re
from contextlib import suppress
from typing import Any

from model_ops.chat_apis import objects
from resources.records.json_paths import structure_in

_NUMBERED = re.compile(r"(?:gen_ai\.(prompt|completion)|llm\.(input|output)_messages)\.(\d+)\.(?:message\.)?(.+)")
_NUMBERED_CALL = re.compile(r"tool_calls\.(\d+)\.(?:tool_call\.)?(?:function\.)?(id|name|arguments)")
_NUMBERED_PART = re.compile(r"contents\.(\d+)\.message_content\.text")
_FUNCTION = re.compile(r"llm\.request\.functions\.(\d+)\.(name|description|parameters)")
_TEXTS = ("text", "input_text", "output_text")
ROLE_OF_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
"""Names of the older conventions' message events."""


def structured(value: Any) -> Any:
    """Spans hold structured attributes as JSON text, some encoded twice."""
    return (structure_in(value) or value) if isinstance(value, str) else value


def _messages_at(attributes: dict[str, Any], name: str) -> Any:
    """An attribute that holds messages: also one text, as it is or as JSON."""
    messages = structured(attributes.get(name))
    if isinstance(messages, str) and messages[:1] == '"':
        with suppress(ValueError):
            messages = json.loads(messages)
    return messages


def content_of(attributes: dict[str, Any], events: list[tuple[Any, dict[str, Any]]]) -> tuple[list, list]:
    """The messages before the call, and its answers as {message, finish_reason}."""
    asked, said = (_messages_at(attributes, f"gen_ai.{side}.messages") for side in ("input", "output"))
    if asked is None and said is None:
        asked, said = _numbered(attributes)
    if not asked and not said:
        asked, said = _messages_at(attributes, "gen_ai.prompt"), _messages_at(attributes, "gen_ai.completion")
    if not asked and not said:
        asked, said = _of_events(events)
    messages = [spoken for message in _listed(asked, "user") for spoken in _messages(message)]
    answers = []
    for message in _listed(said, "assistant"):
        spoken = [each for each in _messages(message) if each.get("role") != "tool"]
        answers.append(
            {"message": {**spoken[0], "role": "assistant"} if spoken else None, "finish_reason": message.get("finish_reason")}
        )
    return messages, answers


def _listed(said: Any, speaker: str) -> list[dict[str, Any]]:
    if isinstance(said, str):
        return [{"role": speaker, "content": said}] if said else []
    if isinstance(said, dict):
        return _listed(said["messages"], speaker) if isinstance(said.get("messages"), list) else [said]
    return [
        {"role": speaker, "content": each} if isinstance(each, str) else each
        for each in said or []
        if isinstance(each, dict | str)
    ]


def _messages(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message of parts in the OpenAI shape; tool results become messages of their own."""
    parts = structured(message.get("parts"))
    if parts is None and any("content" in part for part in objects(message.get("content")) if part.get("type") in _TEXTS):
        parts = message["content"]
    if isinstance(parts, str):
        parts = [parts]
    if not isinstance(parts, list):
        return [{key: value for key, value in message.items() if key not in ("finish_reason", "index")}]
    contents, calls, thoughts, answers = [], [], [], []
    for part in parts:
        part = {"type": "text", "text": part} if isinstance(part, str) else part
        kind = part.get("type", "text" if isinstance(part.get("text"), str) else None) if isinstance(part, dict) else None
        if kind in _TEXTS:
            contents.append({"type": "text", "text": part.get("content") or part.get("text") or ""})
        elif kind in ("reasoning", "thinking"):
            thoughts.append(str(part.get("content") or part.get("text") or part.get("thinking") or ""))
        elif kind == "tool_call":
            calls.append(
                {
                    "id": part.get("id"),
                    "type": "function",
                    "function": {"name": part.get("name"), "arguments": _text(part.get("arguments"), "{}")},
                }
            )
        elif kind == "tool_call_response":
            answers.append({"role": "tool", "tool_call_id": part.get("id"), "content": _text(_result(part), "")})
        elif isinstance(part, dict):
            contents.append(_reference(part))
    spoken: dict[str, Any] = {"role": message.get("role"), "content": None}
    if len(contents) == 1 and contents[0]["type"] == "text":
        spoken["content"] = contents[0]["text"]
    elif contents:
        spoken["content"] = contents
    if calls:
        spoken["tool_calls"] = calls
    if thoughts:
        spoken["reasoning_content"] = "\n".join(thoughts)
    if message.get("name"):
        spoken["name"] = message["name"]
    return ([spoken] if contents or calls or thoughts or not answers else []) + answers


def _result(part: dict[str, Any]) -> Any:
    return next((part[key] for key in ("response", "result", "content", "output") if part.get(key) is not None), None)


def _reference(part: dict[str, Any]) -> dict[str, Any]:
    """A blob, file or uri as a part of the OpenAI API; other parts unchanged."""
    kind, mime = part.get("type"), part.get("mime_type") or "application/octet-stream"
    if kind == "file":
        return {"type": "file", "file": {"file_id": part.get("file_id")}}
    if kind not in ("blob", "uri"):
        return {**part, "type": str(kind)}
    url = part.get("uri") if kind == "uri" else f"data:{mime};base64,{part.get('content') or ''}"
    if part.get("modality") == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"file_data": url}}


def _text(value: Any, absent: str) -> str:
    if value is None:
        return absent
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def system_of(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    said = _messages_at(attributes, "gen_ai.system_instructions")
    if isinstance(said, list):
        return [spoken for spoken in _messages({"role": "system", "parts": said}) if spoken["content"]]
    return [{"role": "system", "content": said}] if isinstance(said, str) and said else []


def tools_of(attributes: dict[str, Any]) -> list[Any] | None:
    offered = structured(attributes.get("gen_ai.tool.definitions"))
    if offered is None:
        schema = re.compile(r"llm\.tools\.\d+\.tool\.json_schema")
        schemas = [(key, value) for key, value in attributes.items() if schema.fullmatch(key)]
        offered = [structured(value) for _, value in sorted(schemas, key=lambda item: int(item[0].split(".")[2]))]
        held = structured(attributes.get("llm.invocation_parameters"))  # older OpenInference
        listed = (held.get("tools") or held.get("functions")) if isinstance(held, dict) else None
        offered = offered or listed or _functions(attributes)
    if not isinstance(offered, list) or not offered:
        return None
    return [
        {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
        if isinstance(tool, dict) and "function" not in tool and "name" in tool
        else tool
        for tool in (structured(each) for each in offered)
    ]


def _functions(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    """OpenLLMetry's llm.request.functions.0.name."""
    functions: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        if match := _FUNCTION.fullmatch(key):
            functions.setdefault(int(match[1]), {})[match[2]] = structured(value)
    return [function for _, function in sorted(functions.items())]


def _numbered(attributes: dict[str, Any]) -> tuple[list, list]:
    """OpenLLMetry's gen_ai.prompt.0.role and OpenInference's llm.input_messages.0.message.role."""
    sides: dict[str, dict[int, dict[str, Any]]] = {"asked": {}, "said": {}}
    for key, value in attributes.items():
        if not (match := _NUMBERED.fullmatch(key)):
            continue
        side = "asked" if match[1] == "prompt" or match[2] == "input" else "said"
        message = sides[side].setdefault(int(match[3]), {"role": "user" if side == "asked" else "assistant"})
        if call := _NUMBERED_CALL.fullmatch(match[4]):
            message.setdefault("calls", {}).setdefault(int(call[1]), {})[call[2]] = value
        elif part := _NUMBERED_PART.fullmatch(match[4]):
            message.setdefault("texts", {})[int(part[1])] = value
        elif match[4] in ("role", "content", "finish_reason", "tool_call_id", "name"):
            message[match[4]] = structured(value) if match[4] == "content" else value
    for messages in sides.values():
        for message in messages.values():
            calls, texts = message.pop("calls", {}), message.pop("texts", {})
            if calls:
                message.setdefault("content", None)
                message["tool_calls"] = [
                    {
                        "id": call.get("id"),
                        "type": "function",
                        "function": {"name": call.get("name"), "arguments": _text(call.get("arguments"), "{}")},
                    }
                    for _, call in sorted(calls.items())
                ]
            if texts:
                message["content"] = [{"type": "text", "text": text} for _, text in sorted(texts.items())]
            if isinstance(message.get("content"), dict):
                message["content"] = _text(message["content"], "")
    asked, said = ([message for _, message in sorted(sides[side].items())] for side in ("asked", "said"))
    return asked, said


def _of_events(events: list[tuple[Any, dict[str, Any]]]) -> tuple[list, list]:
    """Older conventions: one span event per message, or one for the prompt and one for the completion."""
    asked: list[Any] = []
    said: list[Any] = []
    for name, attributes in events:
        if name == "gen_ai.content.prompt":
            asked += _listed(structured(attributes.get("gen_ai.prompt")), "user")
        elif name == "gen_ai.content.completion":
            said += _listed(structured(attributes.get("gen_ai.completion")), "assistant")
        elif name == "gen_ai.choice":
            message = structured(attributes.get("message"))
            message = message if isinstance(message, dict) else {"content": attributes.get("content") or message}
            if attributes.get("tool_calls"):
                message = {**message, "tool_calls": structured(attributes["tool_calls"])}
            said.append(
                {
                    "role": "assistant",
                    **message,
                    "finish_reason": attributes.get("finish_reason"),
                    "index": attributes.get("index"),
                }
            )
        elif match := ROLE_OF_EVENT.fullmatch(str(name)):
            message = {"role": attributes.get("role") or match[1], "content": attributes.get("content")}
            if attributes.get("tool_calls"):
                message["tool_calls"] = structured(attributes["tool_calls"])
            if attributes.get("id"):
                message["tool_call_id"] = attributes["id"]
            asked.append(message)
    if all(isinstance(answer.get("index"), int) for answer in said):
        said.sort(key=lambda answer: answer["index"])
    return asked, said

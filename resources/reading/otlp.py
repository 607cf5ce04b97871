"""Turns a span or log record of OTLP JSON into a model call: OpenAI messages, usage, times, evaluations.

    model_call_of('{"traceId": ..., "attributes": [{"key": "gen_ai.operation.name", ...}]}')    # JSON text

Attribute names: the GenAI semantic conventions (messages in parts, as JSON text or structured), their older names and message
events, OpenLLMetry's numbered attributes, OpenInference's llm.*. DuckDB calls it for items with one of these names. It never
raises: for an item that is not a model call it returns {"kind": "passed over", "rule": ...}.
"""

from __future__ import annotations

import json
import re
from typing import Any

from resources.reading.inline_media import NEEDLES, referenced
from resources.reading.json_text import json_text

INFERENCE = {"chat", "text_completion", "generate_content", "completion"}
PARAMETERS = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_tokens": "max_tokens", "seed": "seed",
    "stop_sequences": "stop", "choice.count": "n", "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty", "stream": "stream",
}
FINISHED = {"tool_call": "tool_calls", "tool_use": "tool_calls", "end_turn": "stop", "max_tokens": "length"}
DETAILS, EVALUATION = "gen_ai.client.inference.operation.details", "gen_ai.evaluation.result"
_NUMBERED = re.compile(r"(?:gen_ai\.(prompt|completion)|llm\.(input|output)_messages)\.(\d+)\.(?:message\.)?(.+)")
_NUMBERED_CALL = re.compile(r"tool_calls\.(\d+)\.(?:tool_call\.)?(?:function\.)?(id|name|arguments)")
_NUMBERED_PART = re.compile(r"contents\.(\d+)\.message_content\.text")
_ROLE_OF_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")


def model_call_of(text: str) -> str:
    """The record of one span or log record, as JSON text."""
    try:
        item = json.loads(text)
        told = _told(item) if isinstance(item, dict) else _passed_over("other")
        written = json_text(told)
        # a part's content is base64, whether its item says so or not
        return json_text(referenced(told)) if any(needle in written for needle in NEEDLES) else written
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError):
        return '{"kind":"broken"}'


def _passed_over(what: Any) -> dict[str, Any]:
    rule = what if isinstance(what, str) and re.fullmatch(r"[a-z_]{1,40}", what) else "other"
    return {"kind": "passed over", "rule": f"otlp_{rule}"}


def _told(item: dict[str, Any]) -> dict[str, Any]:
    attributes = _attributes(item.get("attributes"))
    name = item.get("eventName") or attributes.get("event.name")
    is_log = "startTimeUnixNano" not in item and "endTimeUnixNano" not in item
    if is_log and name == EVALUATION:
        found = _evaluation(attributes, item.get("timeUnixNano") or item.get("observedTimeUnixNano"))
        found["response_id"] = found["response_id"] or _span(item)
        told = (found["value"] is not None or found["label"]) and (found["response_id"] or item.get("traceId"))
        return {"kind": "evaluation" if told else "incomplete", "trace_id": item.get("traceId"), "evaluations": [found]}
    if is_log and name != DETAILS:
        return _passed_over("message_event" if str(name).startswith("gen_ai.") else "other")
    if is_log and isinstance(item.get("body"), dict):
        body = _plain(item["body"])
        attributes = {**(body if isinstance(body, dict) else {}), **attributes}
    events = [(event.get("name"), _attributes(event.get("attributes")), event.get("timeUnixNano"))
              for event in item.get("events") or []]
    for event, more, _ in events:
        if event == DETAILS:
            attributes = {**more, **attributes}
    if not (is_log or _is_inference(attributes)):
        what = attributes.get("gen_ai.operation.name") or attributes.get("openinference.span.kind")
        return _passed_over(what.lower() if isinstance(what, str) else "other")
    asked, answers = _content(attributes, [(event, more) for event, more, _ in events])
    if not asked and not answers:
        return _passed_over("call_without_content")
    call = _call(item, attributes)
    call["messages"] = _system(attributes) + asked
    call["choices"] = answers
    call["evaluations"] = [
        {**_evaluation(more, when), "response_id": call["request_id"]} for event, more, when in events if event == EVALUATION
    ]
    return call


def _is_inference(attributes: dict[str, Any]) -> bool:
    operation = attributes.get("gen_ai.operation.name")
    kind = attributes.get("openinference.span.kind") or attributes.get("llm.request.type")
    if operation is not None:
        return operation in INFERENCE
    if kind is not None:
        return kind in ("LLM", "chat", "completion")
    return "gen_ai.request.model" in attributes or "gen_ai.response.model" in attributes


def _call(item: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
    def first(*names: str) -> Any:
        return next((attributes[name] for name in names if attributes.get(name) not in (None, "")), None)

    begun, ended = _nanoseconds(item.get("startTimeUnixNano")), _nanoseconds(item.get("endTimeUnixNano"))
    when = begun or _nanoseconds(item.get("timeUnixNano")) or _nanoseconds(item.get("observedTimeUnixNano"))
    status = item.get("status") or {}
    failed = status.get("code") in (2, "2", "STATUS_CODE_ERROR") or first("error.type") is not None
    ttft = first("gen_ai.response.time_to_first_chunk", "gen_ai.server.time_to_first_token")
    given = {
        name: attributes[f"gen_ai.request.{key}"] for key, name in PARAMETERS.items() if f"gen_ai.request.{key}" in attributes
    }
    invocation = _structured(attributes.get("llm.invocation_parameters"))
    return {
        "kind": "call",
        "request_id": first("gen_ai.response.id", "llm.response.id") or _span(item) or item.get("traceId"),
        "alias_id": _span(item),
        "trace_id": item.get("traceId"),
        "written_ts": None if when is None else str(when // 1000),
        "workload": first("workload_id", "millrace.workload", "gen_ai.workflow.name", "gen_ai.agent.name"),
        "session_id": first("gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id"),
        "user_id": first("enduser.id", "user.id", "traceloop.association.properties.user_id"),
        "model": first("gen_ai.response.model", "gen_ai.request.model", "llm.model_name"),
        "provider": first("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system"),
        "tools": _tools(attributes),
        "params": {**(invocation if isinstance(invocation, dict) else {}), **given},
        "prompt_tokens": first("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
        "completion_tokens": first(
            "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"),
        "cached_tokens": first("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens",
                               "llm.token_count.prompt_details.cache_read"),
        "reasoning_tokens": first("gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.reasoning_tokens",
                                  "llm.token_count.completion_details.reasoning"),
        "latency_ms": None if begun is None or ended is None else (ended - begun) / 1e6,
        "ttft_ms": ttft * 1000 if isinstance(ttft, int | float) else None,
        "error": (status.get("message") or first("error.message", "error.type") or "error") if failed else None,
        "finish_reasons": first("gen_ai.response.finish_reasons"),
    }


def _span(item: dict[str, Any]) -> str | None:
    """A span's id is unique within its trace only."""
    return f"{item['traceId']}-{item['spanId']}" if item.get("traceId") and item.get("spanId") else None


def _evaluation(attributes: dict[str, Any], when: Any) -> dict[str, Any]:
    score, when = attributes.get("gen_ai.evaluation.score.value"), _nanoseconds(when)
    return {
        "name": attributes.get("gen_ai.evaluation.name") or "evaluation",
        "value": score if isinstance(score, int | float) else None,
        "label": attributes.get("gen_ai.evaluation.score.label"),
        "comment": attributes.get("gen_ai.evaluation.explanation"),
        "response_id": attributes.get("gen_ai.response.id"),
        "written_ts": None if when is None else str(when // 1000),
    }


def _nanoseconds(written: Any) -> int | None:
    """OTLP writes 64-bit integers as strings; 0 means that the clock was not set."""
    if isinstance(written, str) and re.fullmatch(r"[0-9]{1,20}", written):
        written = int(written)
    return written if isinstance(written, int) and written > 0 else None


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair["key"]: _plain(pair.get("value")) for pair in pairs or [] if isinstance(pair, dict) and "key" in pair}


def _plain(value: Any) -> Any:
    """An OTLP AnyValue as JSON."""
    if not isinstance(value, dict) or not value:
        return None
    kind, content = next(iter(value.items()))
    if kind == "intValue":
        return int(content)
    if kind == "arrayValue":
        return [_plain(each) for each in (content or {}).get("values") or []]
    if kind == "kvlistValue":
        return _attributes((content or {}).get("values"))
    return content


def _structured(value: Any) -> Any:
    """Spans hold structured attributes as JSON text."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _content(attributes: dict[str, Any], events: list[tuple[Any, dict[str, Any]]]) -> tuple[list, list]:
    """The messages before the call, and its answers as {message, finish_reason}."""
    asked = _structured(attributes.get("gen_ai.input.messages"))
    said = _structured(attributes.get("gen_ai.output.messages"))
    if asked is None and said is None:
        asked, said = _numbered(attributes)
    if not asked and not said:
        asked, said = _structured(attributes.get("gen_ai.prompt")), _structured(attributes.get("gen_ai.completion"))
    if not asked and not said:
        asked, said = _of_events(events)
    messages = [spoken for message in _listed(asked, "user") for spoken in _messages(message)]
    answers = []
    for message in _listed(said, "assistant"):
        spoken = [each for each in _messages(message) if each.get("role") != "tool"]
        ended = message.get("finish_reason")
        answers.append({"message": {**spoken[0], "role": "assistant"} if spoken else None,
                        "finish_reason": FINISHED.get(ended, ended)})
    return messages, answers


def _listed(said: Any, speaker: str) -> list[dict[str, Any]]:
    if isinstance(said, str):
        return [{"role": speaker, "content": said}] if said else []
    if isinstance(said, dict):
        return _listed(said["messages"], speaker) if isinstance(said.get("messages"), list) else [said]
    return [each for each in said or [] if isinstance(each, dict)]


def _messages(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message of parts in the OpenAI shape; tool results become messages of their own."""
    if not isinstance(message.get("parts"), list):
        return [{key: value for key, value in message.items() if key not in ("finish_reason", "index")}]
    contents, calls, thoughts, answers = [], [], [], []
    for part in message["parts"]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            contents.append({"type": "text", "text": part.get("content") or ""})
        elif kind == "reasoning":
            thoughts.append(str(part.get("content") or ""))
        elif kind == "tool_call":
            calls.append({"id": part.get("id"), "type": "function", "function": {
                "name": part.get("name"), "arguments": _text(part.get("arguments"), "{}")}})
        elif kind == "tool_call_response":
            answers.append({"role": "tool", "tool_call_id": part.get("id"),
                            "content": _text(part.get("response", part.get("result")), "")})
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


def _system(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    said = _structured(attributes.get("gen_ai.system_instructions"))
    if isinstance(said, list):
        return [spoken for spoken in _messages({"role": "system", "parts": said}) if spoken["content"]]
    return [{"role": "system", "content": said}] if isinstance(said, str) and said else []


def _tools(attributes: dict[str, Any]) -> list[Any] | None:
    offered = _structured(attributes.get("gen_ai.tool.definitions"))
    if offered is None:
        schema = re.compile(r"llm\.tools\.\d+\.tool\.json_schema")
        schemas = [(key, value) for key, value in attributes.items() if schema.fullmatch(key)]
        offered = [_structured(value) for _, value in sorted(schemas, key=lambda item: int(item[0].split(".")[2]))]
    if not isinstance(offered, list) or not offered:
        return None
    return [
        {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
        if isinstance(tool, dict) and "function" not in tool and "name" in tool else tool
        for tool in (_structured(each) for each in offered)
    ]


def _numbered(attributes: dict[str, Any]) -> tuple[list, list]:
    """OpenLLMetry's gen_ai.prompt.0.role and OpenInference's llm.input_messages.0.message.role."""
    found: dict[str, dict[int, dict[str, Any]]] = {"asked": {}, "said": {}}
    for key, value in attributes.items():
        if not (match := _NUMBERED.fullmatch(key)):
            continue
        side = "asked" if match[1] == "prompt" or match[2] == "input" else "said"
        message = found[side].setdefault(int(match[3]), {"role": "user" if side == "asked" else "assistant"})
        if call := _NUMBERED_CALL.fullmatch(match[4]):
            message.setdefault("calls", {}).setdefault(int(call[1]), {})[call[2]] = value
        elif part := _NUMBERED_PART.fullmatch(match[4]):
            message.setdefault("texts", {})[int(part[1])] = value
        elif match[4] in ("role", "content", "finish_reason", "tool_call_id", "name"):
            message[match[4]] = _structured(value) if match[4] == "content" else value
    for messages in found.values():
        for message in messages.values():
            calls, texts = message.pop("calls", {}), message.pop("texts", {})
            if calls:
                message.setdefault("content", None)
                message["tool_calls"] = [
                    {"id": call.get("id"), "type": "function",
                     "function": {"name": call.get("name"), "arguments": _text(call.get("arguments"), "{}")}}
                    for _, call in sorted(calls.items())
                ]
            if texts:
                message["content"] = [{"type": "text", "text": text} for _, text in sorted(texts.items())]
            if isinstance(message.get("content"), dict):
                message["content"] = _text(message["content"], "")
    asked, said = ([message for _, message in sorted(found[side].items())] for side in ("asked", "said"))
    return asked, said


def _of_events(events: list[tuple[Any, dict[str, Any]]]) -> tuple[list, list]:
    """Older conventions: one span event per message, or one for the prompt and one for the completion."""
    asked: list[Any] = []
    said: list[Any] = []
    for name, attributes in events:
        if name == "gen_ai.content.prompt":
            asked += _listed(_structured(attributes.get("gen_ai.prompt")), "user")
        elif name == "gen_ai.content.completion":
            said += _listed(_structured(attributes.get("gen_ai.completion")), "assistant")
        elif name == "gen_ai.choice":
            message = _structured(attributes.get("message"))
            message = message if isinstance(message, dict) else {"content": attributes.get("content") or message}
            said.append({"role": "assistant", **message, "finish_reason": attributes.get("finish_reason")})
        elif match := _ROLE_OF_EVENT.fullmatch(str(name)):
            message = {"role": attributes.get("role") or match[1], "content": attributes.get("content")}
            if attributes.get("tool_calls"):
                message["tool_calls"] = _structured(attributes["tool_calls"])
            if attributes.get("id"):
                message["tool_call_id"] = attributes["id"]
            asked.append(message)
    return asked, said

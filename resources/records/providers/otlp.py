"""Turns a span or log record of OTLP JSON into a model call. Attribute names: the GenAI semantic conventions, their older names
and message events, OpenLLMetry's numbered attributes, OpenInference's llm.*. DuckDB calls model_call_of and joined_call_of;
they never raise: other items are {"kind": "passed over", "rule": ...}, items that need others of their span {"kind": "side",
...} (resources/reading/pairing.py), and calls of more than LONGEST_BYTES {"kind": "too_long"}."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from model_ops.chat_apis import json_text
from resources.records.inline_media import NEEDLES, referenced
from resources.records.objects.log_reader import LONGEST_BYTES
from resources.records.providers.otlp_messages import ROLE_OF_EVENT, content_of, structured, system_of, tools_of
from resources.records.synonyms import Reader, column_of, shown_leaves

INFERENCE = {"chat", "text_completion", "generate_content", "completion"}
PARAMETERS = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_tokens": "max_tokens", "seed": "seed",
    "stop_sequences": "stop", "choice.count": "n", "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty", "stream": "stream",
}  # fmt: skip
DETAILS, EVALUATION = "gen_ai.client.inference.operation.details", "gen_ai.evaluation.result"
CONTENTS = ("gen_ai.choice", "gen_ai.content.prompt", "gen_ai.content.completion")
_CONVENTIONS = re.compile(
    r"(gen_ai|llm|openinference|openai|traceloop\.(entity|workflow|span)|aws|az|azure|input|output|server|client|network|http|url|net|peer"
    r"|rpc|error|exception|event|otel|telemetry|service|code|thread|process|host|tag)\b"
)
"""Attributes that conventions name: contents, and what the columns do not need."""
_COLUMNS = {
    "user": "user_id", "session": "session_id", "id": "request_id", "time": "written_ts", "latency": "latency_ms",
    "ttft": "ttft_ms", "status": "error",
}  # fmt: skip
"""Keys of a call for the columns of `fields`, where they differ."""
Event = tuple[Any, dict[str, Any], Any]
"""Name, attributes and time of an event."""


def model_call_of(text: str, reader: Reader) -> str:
    """The record of one span or log record, as JSON text. reader: of its source."""
    return _written(lambda: _record(json.loads(text), reader))


def joined_call_of(span: str | None, events: str, reader: Reader) -> str:
    """The record of a span and its log records (a JSON list in the order of time), as JSON text. The span may be missing."""
    return _written(lambda: _joined(json.loads(span or "null"), json.loads(events), reader))


def _written(tell: Callable[[], dict[str, Any]]) -> str:
    try:
        record = tell()
        written = json_text(record)
        # a part's content is base64, whether its item says so or not
        if any(needle in written for needle in NEEDLES):
            written = json_text(referenced(record))
        is_long = len(written) > LONGEST_BYTES // 4 and len(written.encode("utf-8", "surrogatepass")) > LONGEST_BYTES
        return '{"kind":"too_long"}' if is_long else written
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError):
        return '{"kind":"broken"}'


def _passed_over(what: Any) -> dict[str, Any]:
    rule = what if isinstance(what, str) and re.fullmatch(r"[a-z_]{1,40}", what) else "other"
    return {"kind": "passed over", "rule": f"otlp_{rule}"}


def _record(item: Any, reader: Reader) -> dict[str, Any]:
    if not isinstance(item, dict):
        return _passed_over("other")
    if "startTimeUnixNano" in item or "endTimeUnixNano" in item:
        return _of_span(item, _span_events(item), reader)
    attributes, name = _attributes(item.get("attributes")), _name(item)
    if name == EVALUATION:
        evaluation = _evaluation(attributes, _logged_at(item))
        evaluation["response_id"] = evaluation["response_id"] or _span(item)
        is_complete = (evaluation["value"] is not None or evaluation["label"]) and (
            evaluation["response_id"] or item.get("traceId")
        )
        return {
            "kind": "evaluation" if is_complete else "incomplete",
            "trace_id": item.get("traceId"),
            "evaluations": [evaluation],
        }
    if _span(item) and (name in (DETAILS, *CONTENTS) or ROLE_OF_EVENT.fullmatch(str(name))):
        return _side("event", item, _logged_at(item))
    if name != DETAILS:
        return _passed_over("message_event" if str(name).startswith("gen_ai.") else "other")
    return _call_with_content(item, _log_attributes(item), [], reader)


def _joined(span: Any, logged: list[dict[str, Any]], reader: Reader) -> dict[str, Any]:
    """The call of a span and its log records. Log records alone give a call if they hold a question and an answer."""
    events = [(_name(item), _log_attributes(item), _logged_at(item)) for item in logged]
    if span is not None:
        call = _of_span(span, [*_span_events(span), *events], reader)
        return _passed_over("call_without_content") if call["kind"] == "side" else call
    details = next((item for item in logged if _name(item) == DETAILS), None)
    if details is not None:
        return _call_with_content(details, _log_attributes(details), events, reader)
    call = _call_with_content(logged[0], _attributes(logged[0].get("attributes")), events, reader)
    return call if call.get("messages") and call.get("choices") else _passed_over("message_event")


def _of_span(item: dict[str, Any], events: list[Event], reader: Reader) -> dict[str, Any]:
    attributes = _attributes(item.get("attributes"))
    for name, more, _ in events:
        if name == DETAILS:
            attributes = {**more, **attributes}
    if not _is_inference(attributes):
        what = attributes.get("gen_ai.operation.name") or attributes.get("openinference.span.kind")
        return _passed_over(what.lower() if isinstance(what, str) else "other")
    call = _call_with_content(item, attributes, events, reader)
    return _side("span", item, item.get("startTimeUnixNano")) if call["kind"] != "call" and _span(item) else call


def _call_with_content(item: dict[str, Any], attributes: dict[str, Any], events: list[Event], reader: Reader) -> dict[str, Any]:
    asked, answers = content_of(attributes, [(name, more) for name, more, _ in events])
    if not any(map(_says, [*asked, *(answer["message"] for answer in answers)])):
        return _passed_over("call_without_content")
    call = _call(item, attributes, reader)
    call |= _by_fields(item, attributes, reader)
    call["messages"] = system_of(attributes) + asked
    call["choices"] = answers
    call["evaluations"] = [
        {**_evaluation(more, when), "response_id": call["request_id"]} for name, more, when in events if name == EVALUATION
    ]
    if said := call.pop("feedback"):
        call["evaluations"].append({**said, "source": "log", "response_id": call["request_id"]})
    return call


def _says(message: dict[str, Any] | None) -> bool:
    said = message or {}
    called = said.get("tool_calls")
    return bool(said.get("content") or said.get("reasoning_content")) or any(
        call["function"].get("arguments")
        for call in (called if isinstance(called, list) else [])
        if isinstance(call, dict) and isinstance(call.get("function"), dict)
    )


def _side(side: str, item: dict[str, Any], when: Any) -> dict[str, Any]:
    return {"kind": "side", "side": side, "span": _span(item), "moment": _nanoseconds(when)}


def _name(item: dict[str, Any]) -> Any:
    return item.get("eventName") or _attributes(item.get("attributes")).get("event.name")


def _logged_at(item: dict[str, Any]) -> Any:
    return _nanoseconds(item.get("timeUnixNano")) or item.get("observedTimeUnixNano")


def _log_attributes(item: dict[str, Any]) -> dict[str, Any]:
    """A log record's attributes and the fields of its body, which may be JSON in a text."""
    body = structured(_plain(item.get("body")))
    return {**(body if isinstance(body, dict) else {}), **_attributes(item.get("attributes"))}


def _span_events(span: dict[str, Any]) -> list[Event]:
    return [
        (event.get("name"), _attributes(event.get("attributes")), event.get("timeUnixNano"))
        for event in span.get("events") or []
    ]


def _is_inference(attributes: dict[str, Any]) -> bool:
    operation = attributes.get("gen_ai.operation.name")
    kind = attributes.get("openinference.span.kind") or attributes.get("llm.request.type")
    if operation is not None:
        return operation in INFERENCE
    if kind is not None:
        return kind in ("LLM", "chat", "completion")
    return "gen_ai.request.model" in attributes or "gen_ai.response.model" in attributes


def _call(item: dict[str, Any], attributes: dict[str, Any], reader: Reader) -> dict[str, Any]:
    def first(*names: str) -> Any:
        return next((attributes[name] for name in names if attributes.get(name) not in (None, "")), None)

    own = {
        key: value
        for key, value in attributes.items()
        if not _CONVENTIONS.match(key) or (column_of((key,)) and key != "thread.id")
    }
    columns = reader.of(own)
    beside = columns["found"]
    begun, ended = _nanoseconds(item.get("startTimeUnixNano")), _nanoseconds(item.get("endTimeUnixNano"))
    when = begun or _nanoseconds(item.get("timeUnixNano")) or _nanoseconds(item.get("observedTimeUnixNano"))
    status = item.get("status") or {}
    failed = status.get("code") in (2, "2", "STATUS_CODE_ERROR") or first("error.type") is not None
    ttft = first("gen_ai.response.time_to_first_chunk", "gen_ai.server.time_to_first_token")
    given = {
        name: attributes[f"gen_ai.request.{key}"] for key, name in PARAMETERS.items() if f"gen_ai.request.{key}" in attributes
    }
    invocation = structured(attributes.get("llm.invocation_parameters"))
    return {
        "kind": "call",
        "request_id": first("gen_ai.response.id", "llm.response.id") or _span(item) or item.get("traceId"),
        "alias_id": _span(item),
        "trace_id": item.get("traceId"),
        "written_ts": None if when is None else str(when // 1000),
        "workload": first("workload_id", "millrace.workload", "gen_ai.workflow.name", "gen_ai.agent.name"),
        "session_id": first("gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id")
        or beside.get("session"),
        "user_id": first("enduser.id", "user.id", "traceloop.association.properties.user_id") or beside.get("user"),
        "model": first("gen_ai.response.model", "gen_ai.request.model", "llm.model_name") or beside.get("model"),
        "provider": first("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system") or beside.get("provider"),
        "cost": beside.get("cost"),
        "feedback": {"name": beside["feedback_name"], "label": beside["feedback"]} if "feedback" in beside else None,
        "unread": columns["unread"],
        "fingerprint": first("openai.response.system_fingerprint", "gen_ai.openai.response.system_fingerprint"),
        "tools": tools_of(attributes),
        "params": {**(invocation if isinstance(invocation, dict) else {}), **given},
        "prompt_tokens": first("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
        "completion_tokens": first(
            "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"
        ),
        "cached_tokens": first(
            "gen_ai.usage.cache_read.input_tokens",
            "gen_ai.usage.cache_read_input_tokens",
            "llm.token_count.prompt_details.cache_read",
        ),
        "reasoning_tokens": first(
            "gen_ai.usage.reasoning.output_tokens",
            "gen_ai.usage.reasoning_tokens",
            "llm.token_count.completion_details.reasoning",
        ),
        "latency_ms": None if begun is None or ended is None else (ended - begun) / 1e6,
        "ttft_ms": ttft * 1000 if isinstance(ttft, int | float) else None,
        "error": (status.get("message") or first("error.message", "error.type") or "error") if failed else None,
        "finish_reasons": first("gen_ai.response.finish_reasons"),
    }


def _by_fields(item: dict[str, Any], attributes: dict[str, Any], reader: Reader) -> dict[str, Any]:
    """What attributes that the source's `fields` names tell of a call."""
    named = reader.named({**_attributes((item.get("resource") or {}).get("attributes")), **attributes})
    if "feedback" in named:
        named["feedback"] = {"name": "feedback", "label": named["feedback"]}
    if "status" in named:
        named["status"] = "error" if named["status"] == "failure" else None
    return {_COLUMNS.get(name, name): value for name, value in named.items()}


def shown_attributes(document: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of all spans and log records of a document, as unread keys are listed."""
    for key, value in (
        document.items() if isinstance(document, dict) else enumerate(document if isinstance(document, list) else [])
    ):
        yield from shown_leaves(_attributes(value)) if key == "attributes" else shown_attributes(value)


def _span(item: dict[str, Any]) -> str | None:
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
    if isinstance(pairs, dict):
        return {key: _plain(value) if _is_any_value(value) else value for key, value in pairs.items()}
    return {pair["key"]: _plain(pair.get("value")) for pair in pairs or [] if isinstance(pair, dict) and "key" in pair}


def _is_any_value(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)).endswith("Value")


def _plain(value: Any) -> Any:
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

"""Turns a logged call of Anthropic's, Gemini's, Bedrock's or Ollama's API into an OpenAI chat and its facts, as JSON text.
DuckDB calls call_of, which never raises: for a record that it cannot read, `code` and `words` are the reason for quarantine."""

import json
import re
from typing import Any

from model_ops.chat_apis import UnknownBlock, anthropic_api, bodies, body, json_text, mapping, objects, plus
from resources.records.example_prompts import UncomposedError
from resources.records.moments import logged_time
from resources.records.providers import bedrock_bodies, gemini_api, langsmith_runs, ollama_api

ENVELOPE = (
    "workload_id", "workload", "client_id", "client", "session_id", "trace_id", "request_id", "user_id", "user_hash",
    "provider", "served_model_digest", "cache_hit", "latency_ms", "ttft_ms", "cost",
)  # fmt: skip
"""What a gateway writes next to request and response; as in openai_pairs."""
TIMES = ("timestamp", "ts", "created_at", "logging_time", "processed_time")
READ = (
    "request", "response", "full_request", "full_response", "error", "status", "model", "input", "output", "modelInput",
    "modelOutput", "modelId", "requestId", "requestMetadata", "operation", "identity", "recordId", "errorCode", "schemaType",
    "schemaVersion",
)  # fmt: skip
"""What else the providers' records have that is read."""
CHATS = {"anthropic": anthropic_api.chat, "gemini": gemini_api.chat, "ollama": ollama_api.chat,
    "completions": ollama_api.completion}  # fmt: skip
_ROLE = re.compile(r":(?:assumed-role|role|user)/([^/]+)")


def call_of(text: str, form: str) -> str:
    """The call in a record of a format (anthropic, gemini, bedrock, ...), as JSON text."""
    try:
        record = json.loads(text)
        if form == "langsmith":
            record = langsmith_runs.run_of(record)
            # its session_id is a project
            run = _with_envelope({**record, "session_id": None}, langsmith_runs.chat(record), "langsmith") | {"provider": None}
            return json_text(run)
        return json_text(_bedrock(record) if form == "bedrock" else _pair(record, form))
    except ollama_api.NotWhole as reason:
        return json_text({"code": "missing_field", "words": str(reason)})
    except UncomposedError as reason:
        return json_text({"code": "wrong_type", "words": str(reason)})
    except UnknownBlock as unknown:
        return json_text({"code": "unknown_block", "words": f"{unknown} is not known"})
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError):
        return json_text({"code": "wrong_type", "words": f"the record is not as the {form} API writes it"})


def _pair(record: dict[str, Any], form: str) -> dict[str, Any]:
    request, response = bodies(record)
    if form == "anthropic" and "type" not in response and not anthropic_api.is_request(request):
        raise ValueError("a pair of another API")
    return _with_envelope(record, CHATS[form](request, response), form)


def _bedrock(record: dict[str, Any]) -> dict[str, Any]:
    """A model invocation log, a line of batch output, or {request, response} of the Converse API."""
    request, response = bodies(record)
    asked, said = mapping(record.get("input")), mapping(record.get("output"))
    logged = {}
    for side, key in ((asked, "input"), (said, "output")):
        if side.get(f"{key}BodyJson") is None and side.get(f"{key}BodyS3Path"):
            return {"code": "body_in_s3", "words": f"Bedrock wrote the {key} body to an object of its own ({key}BodyS3Path)"}
    if asked:
        request, response = body(asked.get("inputBodyJson")), body(said.get("outputBodyJson"))
        logged = {
            "prompt": plus(
                asked.get("inputTokenCount"), asked.get("cacheReadInputTokenCount"), asked.get("cacheWriteInputTokenCount")
            ),
            "completion": said.get("outputTokenCount"),
            "cached": asked.get("cacheReadInputTokenCount"),
        }
    elif "modelInput" in record:
        request, response = body(record["modelInput"]), body(record.get("modelOutput"))
    elif not bedrock_bodies.is_converse(request, response):
        raise ValueError("a pair of another API")
    failed = mapping(record.get("error")).get("errorMessage") or record.get("errorCode")
    chat = bedrock_bodies.chat(request, response, str(record.get("operation") or ""))
    usage = mapping(chat.get("usage"))
    role = _ROLE.search(str(mapping(record.get("identity")).get("arn")))
    chat |= {
        "usage": {
            name: usage[name] if usage.get(name) is not None else logged.get(name)
            for name in ("prompt", "completion", "cached", "reasoning")
        },
        "metadata": {**mapping(chat.get("metadata")), **mapping(record.get("requestMetadata"))},
        "model": chat.get("model") or str(record.get("modelId") or "").rpartition("/")[2] or None,
        "request_id": chat.get("request_id") or record.get("requestId"),
        "alias_id": record.get("requestId"),  # a recordId is unique in its batch only
        "client": role[1] if role else None,
        "error": failed or chat.get("error"),
    }
    return _with_envelope(record, chat, "bedrock")


def _with_envelope(record: dict[str, Any], chat: dict[str, Any], provider: str) -> dict[str, Any]:
    outside = {name: record.get(name) for name in ENVELOPE}
    metadata = mapping(chat.pop("metadata", None))
    model = chat.get("model") or record.get("model")

    def first(*names: str) -> Any:
        return next((source[name] for name in names for source in (outside, metadata) if source.get(name) is not None), None)

    return {
        **chat,
        "request_id": chat.get("request_id") or outside["request_id"] or chat.get("alias_id"),
        "alias_id": outside["request_id"] or chat.get("alias_id"),
        "trace_id": first("trace_id", "traceId") or outside["request_id"] or chat.get("alias_id"),
        "written_ts": logged_time([*map(record.get, TIMES), chat.get("written_ts")]),
        "workload": first("workload_id", "workload", "workloadId"),
        "client": first("client_id", "client") or chat.get("client"),
        "session_id": first("session_id", "sessionId", "conversation_id", "conversationId") or chat.get("session_id"),
        "user_id": outside["user_id"] or chat.get("user_id") or metadata.get("user_id") or metadata.get("userId"),
        "user_hash": outside["user_hash"],
        "model": str(model).rpartition("/")[2] if model else None,
        "provider": outside["provider"] or provider,
        "served_model_digest": outside["served_model_digest"],
        "cache_hit": outside["cache_hit"],
        "latency_ms": outside["latency_ms"] if outside["latency_ms"] is not None else chat.get("latency_ms"),
        "ttft_ms": outside["ttft_ms"] if outside["ttft_ms"] is not None else chat.get("ttft_ms"),
        "cost": outside["cost"],
        # Vertex AI's batch output has a status on each line, empty if the call succeeded
        "logged_error": record.get("error") or (record.get("status") if "processed_time" in record else None) or None,
    }


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

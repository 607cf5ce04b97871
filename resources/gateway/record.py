"""Turns a frame of the journal into a log record: a line of the formats openai_pairs, anthropic, feedback or capture_note.

A streamed answer is put together. The user is hashed with MILLRACE_USER_HASH_KEY; his id, metadata and keys are taken out of
the request, and out of an answer that repeats them. Raises Unreadable where request or answer cannot be read."""

import gzip
import io
import json
import zlib
from datetime import UTC, datetime
from typing import Any

import zstandard

from model_ops.chat_apis import CUT, anthropic_api
from resources.digests import keyed_hash, user_of
from resources.gateway.journal import Frame
from resources.records import CAPTURE_NOTE_KEY, streams

STREAM = "text/event-stream"
REPEATED = frozenset({"user", "safety_identifier", "metadata", "prompt_cache_key"})
"""What an answer of the Responses API repeats from its request, of what is not written."""
LEFT_OUT = REPEATED | {"session_id", "api_key", "headers", "extra_headers", "extra_body", "return_token_ids"}
"""Keys of a request that are not written: who asked, and what only concerns the transport."""
MOST_TEXT_BYTES = 128 << 20
"""Most bytes of a body that was compressed."""


class Unreadable(Exception):
    """A body that is not what its API says. reason: a word for the counts."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


def record_of(frame: Frame) -> dict[str, Any]:
    """A record that json.dumps can write. Raises Unreadable."""
    meta = frame.meta
    if meta["kind"] == "note":
        return {CAPTURE_NOTE_KEY: {"not_kept": meta["not_kept"], "since": _time(meta["since"]), "until": _time(meta["at"])}}
    if meta["kind"] != "exchange":
        return {"timestamp": _time(meta["at"]), **_object(frame.answer, "no_record")}
    request = _object(plain(frame.request, meta.get("request_encoding", "")), "request_is_no_json")
    response = _response(frame)
    if meta["form"] == "responses":
        response = {name: value for name, value in response.items() if name not in REPEATED}
        response = {"output": [], **response}  # by which ingest knows the Responses API, also of a failure
    return envelope(request, response, meta)


def envelope(request: dict[str, Any], response: Any, meta: dict[str, Any]) -> dict[str, Any]:
    """The record of a request and its whole answer. meta: at (seconds), latency_ms, ttft_ms, session, request_id, client,
    workload, digest, release, sampling, kept_share (of its key's sessions, below 1), status; each may be missing."""
    metadata = _metadata(request)
    user, session = user_and_session(request)
    fingerprint = response.get("system_fingerprint") if isinstance(response, dict) else None
    sampling = {name: value for name, value in meta.get("sampling", {}).items() if request.get(name) is None}
    if meta.get("kept_share") is not None:
        sampling["kept_share"] = meta["kept_share"]
    record = {
        "timestamp": _time(meta["at"]),
        "request_id": meta.get("request_id"),
        "trace_id": _text(metadata.get("trace_id")),
        "session_id": meta.get("session") or session,
        "user_hash": keyed_hash(user_of(user)) if user else None,
        "client_id": meta.get("client"),
        "workload_id": meta.get("workload") or _text(metadata.get("workload_id")),
        "served_model_digest": meta.get("digest") or _text(fingerprint),
        **{name: meta.get(name) for name in ("release", "latency_ms", "ttft_ms", "cost", "cache_hit")},
        "status_code": meta.get("status"),
        "sampling": sampling or None,
        "request": {name: value for name, value in request.items() if name not in LEFT_OUT},
        "response": _without_user(response, user),
    }
    return {name: value for name, value in record.items() if value is not None}


def _response(frame: Frame) -> Any:
    meta, answer = frame.meta, plain(frame.answer, frame.meta.get("encoding", ""))
    problem, status = meta.get("problem", ""), meta.get("status", 0)
    if STREAM in meta.get("type", ""):
        return _streamed(answer.decode("utf-8", "replace"), meta["form"], problem)
    try:
        response = json.loads(answer)
    except (ValueError, RecursionError):
        response = None
    if not isinstance(response, dict):
        if status < 400 and not problem:
            raise Unreadable("answer_is_no_json")
        response = {}
    if (status >= 400 or problem) and not response.get("error"):
        words = problem or _text(response.get("message")) or f"HTTP {status}"
        return {"error": {"message": words, "code": status}}
    return response


def _streamed(text: str, form: str, problem: str) -> Any:
    """The answer that the events of a stream make; with an error if it is not whole."""
    chunks, done = streams.events(text)
    if form == "messages":
        return chunks if not problem else [*chunks, {"type": "error", "error": {"type": "stream_cut", "message": problem}}]
    if form == "responses":
        whole = [chunk["response"] for chunk in chunks if isinstance(chunk.get("response"), dict)]
        last = whole[-1] if whole else {}
        ended = chunks and chunks[-1].get("type") in ("response.completed", "response.incomplete", "response.failed")
        return last if ended else {**last, "error": {"message": f"{CUT} ({problem})" if problem else CUT}}
    answer = streams.joined(chunks, done)
    if problem and "error" in answer and answer["error"].get("message") == CUT:
        answer["error"] = {"message": f"{CUT} ({problem})"}
    return answer


def _without_user(response: Any, user: str | None) -> Any:
    """An answer whose error, which may quote the request, does not say who asked."""
    error = response.get("error") if isinstance(response, dict) else None
    if user is None or error is None or user not in (text := json.dumps(error, ensure_ascii=False)):
        return response
    return {**response, "error": json.loads(text.replace(json.dumps(user, ensure_ascii=False)[1:-1], "[user]"))}


def _metadata(request: dict[str, Any]) -> dict[str, Any]:
    metadata = request.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def user_and_session(request: dict[str, Any]) -> tuple[str | None, str | None]:
    """The id of whoever asked, and the session, by the names that clients use. A user is no session."""
    metadata = _metadata(request)
    named, in_user = anthropic_api.user_of(metadata.get("user_id"))
    user = next((text for value in (request.get("user"), request.get("safety_identifier")) if (text := _text(value))), named)
    named_in = (metadata.get("session_id"), metadata.get("conversation_id"))
    places = (request.get("session_id"), *named_in, in_user, request.get("prompt_cache_key"))
    return user, next((text for value in places if (text := _text(value)) and text != user), None)


def _object(text: bytes, reason: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Unreadable(reason)
    return value


def plain(body: bytes, encoding: str) -> bytes:
    """A body without its Content-Encoding. Raises Unreadable."""
    try:
        match encoding.strip().lower():
            case "" | "identity":
                return body
            case "gzip" | "x-gzip":
                with gzip.open(io.BytesIO(body)) as file:
                    return file.read(MOST_TEXT_BYTES)
            case "deflate":
                return zlib.decompressobj().decompress(body, MOST_TEXT_BYTES)
            case "zstd":
                with zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True) as file:
                    return file.read(MOST_TEXT_BYTES)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise Unreadable("unknown_encoding") from error
    raise Unreadable("unknown_encoding")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")

"""Joins streamed answers (chat.completion.chunk objects, or their server-sent events) into one ChatCompletion. One without
finish_reason and [DONE] was cut: a failed request ("stream_cut: ...") with the partial answer, which gives no training row."""

import json
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model_ops.chat_apis import CUT, json_text
from resources.records.objects.log_reader import Records, record_of

CHUNK = "chat.completion.chunk"
OPEN_STREAMS = 10_000
"""Most open answers of one object; beyond this, the answer without a chunk for the longest time is closed as it is."""
SETTLED = 256
"""Lines to wait after an answer has finished: its usage comes in a later chunk."""


def is_chunk(value: Any) -> bool:
    """Whether a parsed value is a chunk of a streamed answer."""
    return isinstance(value, dict) and value.get("object") == CHUNK


def events(text: str) -> tuple[list[dict], bool]:
    """The chunks in a text of server-sent events, and whether it ends with [DONE]. Invalid JSON is skipped."""
    chunks, done = [], False
    for line in text.splitlines():
        data = line.strip().removeprefix("data:").strip()
        if data == "[DONE]":
            done = True
        elif data.startswith("{"):
            try:
                chunk = json.loads(data)
            except (ValueError, RecursionError):  # the stream was cut here; finish_reason will be missing
                continue
            chunks.append(chunk)
    return chunks, done


def joined(chunks: Iterable[dict], done: bool = False) -> dict[str, Any]:
    """One ChatCompletion from its chunks. A cut stream has an `error` and the partial choices."""
    answer: dict[str, Any] = {"object": "chat.completion"}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for key in ("id", "created", "model", "provider", "system_fingerprint", "service_tier", "prompt_token_ids"):
            if chunk.get(key) is not None:
                answer.setdefault(key, chunk[key])
        for key in ("usage", "error", "metrics"):
            if chunk.get(key):
                answer[key] = chunk[key]
        pieces = chunk.get("choices")
        for piece in pieces if isinstance(pieces, list) else []:
            if isinstance(piece, dict):
                _add_piece(choices.setdefault(_place(piece), {"message": {"role": "assistant"}}), piece)
    answer["choices"] = [{"index": index, **_finished(choice)} for index, choice in sorted(choices.items())]
    ended = bool(choices) and all(choice.get("finish_reason") for choice in choices.values())
    if not (ended or done) and "error" not in answer:
        answer["error"] = {"message": CUT}
    return answer


def with_joined_response(record: dict[str, Any]) -> dict[str, Any]:
    """The record with its streamed response joined; unchanged where the response is no stream."""
    response, done = record.get("response"), False
    if isinstance(response, str) and CHUNK in response:
        response, done = events(response)
    if not isinstance(response, list) or not any(map(is_chunk, response)):
        return record
    chunks = [chunk for chunk in response if isinstance(chunk, dict)]
    done = done or "[DONE]" in [chunk for chunk in response if isinstance(chunk, str)]
    record = {**record, "response": joined(chunks, done)}
    return with_failure(record, record["response"])


def with_failure(record: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """The record with the error of its joined answer: LiteLLM records next to the response whether a request failed."""
    error = answer.get("error")
    if not error or "call_type" not in record:
        return record
    words = error.get("message") if isinstance(error, dict) else error
    return {**record, "status": "failure", "error_str": record.get("error_str") or str(words)}


def _place(piece: dict) -> int:
    index = piece.get("index")
    return index if isinstance(index, int) else 0


def _add_piece(choice: dict[str, Any], piece: dict) -> None:
    delta = piece.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    message = choice["message"]
    for key in ("content", "reasoning_content", "reasoning", "refusal"):
        if isinstance(delta.get(key), str):
            message[key] = message.get(key, "") + delta[key]
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            _add_call(choice.setdefault("calls", {}), call)
    if isinstance(delta.get("function_call"), dict):
        _add_function(message.setdefault("function_call", {"name": "", "arguments": ""}), delta["function_call"])
    if piece.get("finish_reason"):
        choice["finish_reason"] = piece["finish_reason"]
    ids = piece.get("token_ids", delta.get("token_ids"))
    if isinstance(ids, list):
        choice["token_ids"] = choice.get("token_ids", []) + ids


def _add_call(calls: dict[int, list[dict[str, Any]]], delta: dict) -> None:
    """Adds a piece of a call. calls: by index; some servers give all calls the same."""
    place = delta.get("index")
    place = place if isinstance(place, int) else max(len(calls) - (0 if delta.get("id") else 1), 0)
    same = calls.setdefault(place, [])
    function = delta["function"] if isinstance(delta.get("function"), dict) else {}
    if not same or _begins(same[-1], delta.get("id"), function):
        same.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
    same[-1]["id"] = same[-1]["id"] or delta.get("id")
    _add_function(same[-1]["function"], function)


def _begins(call: dict[str, Any], call_id: Any, function: dict[str, Any]) -> bool:
    """Whether a piece begins a new call after `call`: it has another id, or a name after arguments that are complete. (Some
    servers repeat a name, or give each piece a new id.)"""
    name, other = function.get("name"), bool(call_id and call["id"] and call_id != call["id"])
    if not (name or other):
        return False
    complete = record_of(call["function"]["arguments"]) is not None
    if other:
        return bool(name) or complete
    again = not call_id and str(function.get("arguments")).lstrip().startswith("{")
    return complete and (name != call["function"]["name"] or again)


def _add_function(function: dict[str, str], delta: dict) -> None:
    name, arguments = delta.get("name"), delta.get("arguments")
    if isinstance(name, str) and name != function["name"]:  # some servers repeat the name with every piece
        function["name"] += name
    if isinstance(arguments, str):
        function["arguments"] += arguments


def _finished(choice: dict[str, Any]) -> dict[str, Any]:
    calls = choice.pop("calls", {})
    message = choice["message"]
    if calls:
        message["tool_calls"] = [call for _, same in sorted(calls.items()) for call in same]
    message.setdefault("content", None if calls or "function_call" in message else "")
    return choice


class StreamFold:
    """Joins lines of chunks into records of whole answers, each at the position of its first line. The request is in one of an
    answer's lines, or in a line of its own before them: with the answer's id (`id`, `response_id`), or while no other request
    waits. Requests and answers that remain alone go to quarantine."""

    def __init__(self, beside: Collection[str | int] = ()) -> None:
        """beside: further keys next to chunks that belong to the whole answer."""
        self._beside = (*ENVELOPE, *(key for key in beside if key not in CHUNK_KEYS))
        self._streams: dict[str, dict[str, Any]] = {}
        self._requests: dict[str, dict[str, Any]] = {}
        self._seen = 0

    def add(self, part: Records) -> tuple[Records, Records]:
        """The answers that are complete by now, and the lines that are neither chunk nor request."""
        begun = self._seen
        taken = np.zeros(len(part.rows), dtype=bool)
        asked = pc.or_(pc.match_substring(part.raw, CHUNK), pc.match_substring(part.raw, '"request"'))
        for place in np.flatnonzero(asked.to_numpy(zero_copy_only=False)):
            row, raw = part.rows[place].as_py(), part.raw[place].as_py()
            self._seen, taken[place] = begun + int(place), True
            line = record_of(raw)
            if line is not None and is_chunk(line) and isinstance(line.get("id"), str):
                self._chunk(row, line)
            elif line is not None and isinstance(line.get("request"), dict) and "response" not in line:
                name = line.get("id") or line.get("response_id")
                self._requests[name if isinstance(name, str) else f"\0{row}"] = {"row": row, "line": line}
            else:
                taken[place] = False
        self._seen = begun + len(part.rows)
        others = pa.array(~taken)
        sample = [record for record in part.sample if not is_chunk(record)]
        return _records(self._settled()), Records(part.rows.filter(others), part.raw.filter(others), sample)

    def rest(self) -> Records:
        """The remaining records at the end of the object: open answers, and requests without one."""
        rest_of = [self._whole(name) for name in list(self._streams)]
        rest_of += [(each["row"], _written(each["line"])) for each in self._requests.values()]
        self._requests = {}
        return _records(rest_of)

    def _chunk(self, row: int, chunk: dict[str, Any]) -> None:
        name = chunk["id"]
        stream = self._streams.pop(name, None)
        listed = chunk.get("choices")
        pieces = [piece for piece in listed if isinstance(piece, dict)] if isinstance(listed, list) else []
        if stream is not None and any(_place(piece) in stream["ended"] and piece.get("delta") for piece in pieces):
            self._streams[f"{name}\0{row}"] = stream  # the id came back with another answer
            stream = None
        if stream is None:
            stream = {"row": row, "envelope": self._request_of(name), "chunks": [], "ended": set()}
        stream["ended"].update(_place(piece) for piece in pieces if piece.get("finish_reason"))
        stream["envelope"] = {**stream["envelope"], **{key: chunk[key] for key in self._beside if key in chunk}}
        stream["chunks"].append(chunk)
        stream["last"] = self._seen
        self._streams[name] = stream  # the last one in the dict is the one that spoke last

    def _request_of(self, name: str) -> dict[str, Any]:
        if name in self._requests:
            return self._requests.pop(name)["line"]
        nameless = [key for key in self._requests if key.startswith("\0")]
        return self._requests.pop(nameless[0])["line"] if len(nameless) == 1 else {}

    def _settled(self) -> list[tuple[int, str]]:
        """Finished answers without a chunk for a while, so that memory holds open answers only."""
        done = [
            name
            for name, stream in self._streams.items()
            if self._seen - stream["last"] > SETTLED and "error" not in joined(stream["chunks"])
        ]
        done += [name for name in list(self._streams)[: max(len(self._streams) - OPEN_STREAMS, 0)] if name not in done]
        return [self._whole(name) for name in done]

    def _whole(self, name: str) -> tuple[int, str]:
        stream = self._streams.pop(name)
        record = {key: value for key, value in stream["envelope"].items() if key not in ("id", "response_id")}
        record["response"] = joined(stream["chunks"])
        return stream["row"], _written(record)


ENVELOPE = (
    "request", "timestamp", "workload_id", "client_id", "session_id", "trace_id", "request_id", "user_id", "latency_ms",
    "ttft_ms", "cost", "served_model_digest",
)  # fmt: skip
"""Keys that a gateway writes next to a chunk and that belong to the whole answer."""
CHUNK_KEYS = ("id", "object", "created", "model", "choices", "usage", "error", "response_id")


def _written(record: dict[str, Any]) -> str:
    try:
        return json_text(record)
    except RecursionError:  # nested beyond what any message is: it goes to quarantine
        return "0"


def _records(lines: list[tuple[int, str]]) -> Records:
    lines.sort()
    return Records(pa.array([row for row, _ in lines], pa.int64()), pa.array([raw for _, raw in lines], pa.large_string()), [])

"""Reads vLLM's text log: the lines of --enable-log-requests and --enable-log-outputs as JSON records. Until 0.15 or so the line
"Received request" has the prompt; later it is in the line "Request ... details" at level DEBUG: both are one record, at the
first one's line. A container runtime's time in front of a line is taken, else vLLM's own, which has no year.

    # {"vllm": "request", "id", "time", "prompt", "prompt_token_ids", "params", "lora"}
    # {"vllm": "response", "id", "time", "output", "output_token_ids", "finish_reason"}
    # {"vllm": "broken"} for a request or response that breaks off, {"vllm": "chatter" | "delta" | "params"} for other lines
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from model_ops.chat_apis import json_text
from resources.records.objects.decompress import DamagedError
from resources.records.objects.log_reader import RAW_BYTES, RecordProblem, Records, damaged, text_lines

TOGETHER = 8 << 20
"""Characters of lines that are given together."""
WAITING = 1_000
"""Most details that wait for the line with their parameters, which is the next one of the same thread."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(  # docker's or Kubernetes' time; the process; level, time, place
    r"(?:(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.]*(?:Z|[+-]\d\d:?\d\d)) (?:std(?:out|err) [FP] )?)?"
    r"(?:\(\w+(?: pid=\d+)?\) )?"
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<when>\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)? \[?[\w./]+\.py:\d+\] "
)
_TEXT = r"""(?:None|'[^'\\]*+(?:\\.[^'\\]*+)*+'|"[^"\\]*+(?:\\.[^"\\]*+)*+")"""
_IDS = r"(?:None|\[[\d, ]*\]|\([\d, ]*\))"
_PARAMETERS = r"(?:sampling_)?params(?:_list)?: (?P<params>.*)"
_RECEIVED = re.compile(
    rf"Received request (?P<id>\S+): prompt: (?P<text>{_TEXT}), {_PARAMETERS}, prompt_token_ids: (?P<ids>{_IDS}), "
    r"(?:prompt_embeds shape: .*?, )?lora_request: (?P<lora>.*?)(?:, prompt_adapter_request: .*)?\.$"
)
_DETAILS = re.compile(
    rf"Request (?P<id>\S+) details: prompt: (?P<text>{_TEXT}), prompt_token_ids: (?P<ids>{_IDS}), prompt_embeds shape: .*\.$"
)
_PARAMS = re.compile(rf"Received request (?P<id>\S+): {_PARAMETERS}, lora_request: (?P<lora>.*?)\.$")
_GENERATED = re.compile(
    rf"Generated response (?P<id>\S+?)(?: \(streaming (?P<stream>delta|complete)\))?: output: (?P<text>{_TEXT})"
    rf"(?:, output_token_ids: (?P<ids>{_IDS}))?, finish_reason: (?P<end>\S+)$"
)
_BEGUN = re.compile(
    r"(?:Received request|Request|Generated response) \S+?(?: details| \(streaming \w+\))?: (?:prompt|output|params): "
)
_PARAMETER = re.compile(
    r"\b(temperature|top_p|top_k|min_p|max_tokens|seed|n|presence_penalty|frequency_penalty|repetition_penalty)=(-?[\d.e+-]+)(?=[,)])"
)
_STOP = re.compile(rf"\bstop=(\[(?:{_TEXT}(?:, )?)*\])")
_LORA = re.compile(r"lora_name='([^']*)'")


def is_vllm_log(head: bytes) -> bool:
    """Whether one of the first lines is written as vLLM's logger writes."""
    if head.lstrip()[:1] in (b"{", b"["):
        return False
    lines = head[: 256 << 10].decode("utf-8", "replace").split("\n")
    return any(_PREFIX.match(_COLOUR.sub("", line)) for line in lines)


def read_vllm_log(chunks: Iterator[bytes]) -> Iterator[Records | RecordProblem]:
    damage: list[DamagedError] = []
    waiting: dict[str, tuple[int, dict[str, Any]]] = {}
    rows: list[tuple[int, dict[str, Any]]] = []
    size = 0
    for number, line in enumerate(text_lines(chunks, damage), 1):
        line = _COLOUR.sub("", line.rstrip("\r\n"))
        if not line.strip():
            continue
        size += len(line)
        try:
            record = _record(line)
        except UnicodeEncodeError:
            yield RecordProblem(
                number,
                "invalid_utf8",
                "the line is not UTF-8 text; it was skipped",
                line.encode("utf-8", "surrogateescape")[:RAW_BYTES],
            )
            continue
        _add(number, record, rows, waiting)
        if size >= TOGETHER:
            yield _records(rows)
            rows, size = [], 0
    rows += waiting.values()
    if rows:
        yield _records(rows)
    if damage:
        yield damaged(damage[0], b"")


def _add(number: int, record: dict[str, Any], rows: list, waiting: dict[str, tuple[int, dict[str, Any]]]) -> None:
    name, kind = str(record.get("id")), record["vllm"]
    if kind == "details":
        while len(waiting) >= WAITING:
            rows.append(waiting.pop(next(iter(waiting))))
        waiting[name] = (number, {**record, "vllm": "request"})
    elif kind == "params" and name in waiting:
        first, request = waiting.pop(name)
        rows.append((first, {**request, "params": record["params"], "lora": record["lora"]}))
        rows.append((number, {"vllm": "params"}))
    elif kind == "params":
        rows.append((number, {**record, "vllm": "request"}))
    else:
        rows.append((number, record))


def _records(rows: list[tuple[int, dict[str, Any]]]) -> Records:
    raw = pa.array([json_text(record) for _, record in rows], pa.large_string())
    return Records(pa.array([number for number, _ in rows], pa.int64()), raw, [record for _, record in rows[:8]])


def _record(line: str) -> dict[str, Any]:
    """The record of a line. Raises UnicodeEncodeError for a request or response that is not UTF-8."""
    prefix = _PREFIX.match(line)
    if prefix is None:
        return {"vllm": "chatter"}
    said, when = line[prefix.end() :], prefix["iso"] or prefix["when"]
    if _BEGUN.match(said) is None:
        return {"vllm": "chatter"}
    line.encode()
    if match := _GENERATED.match(said):
        if match["stream"] == "delta":
            return {"vllm": "delta"}
        return {
            "vllm": "response",
            "id": _id(match["id"]),
            "time": when,
            "output": _text(match["text"]),
            "output_token_ids": _ids(match["ids"]),
            "finish_reason": None if match["end"] == "None" else match["end"],
        }
    for kind, pattern in (("request", _RECEIVED), ("details", _DETAILS), ("params", _PARAMS)):
        if match := pattern.match(said):
            given = match.groupdict()
            return {
                "vllm": kind,
                "id": _id(match["id"]),
                "time": when,
                "prompt": _text(given.get("text")),
                "prompt_token_ids": _ids(given.get("ids")),
                "params": _parameters(given.get("params")),
                "lora": (_LORA.search(given.get("lora") or "") or [None, None])[1],
            }
    return {"vllm": "broken"}


def _id(name: str) -> str:
    """The request's id. Prompts of one completion request are numbered; its response is not."""
    return re.sub(r"^(cmpl-\w+)-0$", r"\1", name)


def _text(written: str | None) -> str | None:
    return None if written in (None, "None") else ast.literal_eval(written)


def _ids(written: str | None) -> list[int] | None:
    return [int(number) for number in re.findall(r"\d+", written)] if written and written != "None" else None


def _parameters(written: str | None) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for name, number in _PARAMETER.findall(written or ""):
        try:
            parameters[name] = float(number) if "." in number or "e" in number else int(number)
        except ValueError:
            continue
    if stop := _STOP.search(written or ""):
        parameters["stop"] = ast.literal_eval(stop[1])
    return {name: value for name, value in parameters.items() if value != []}

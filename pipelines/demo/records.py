"""One exchange of the demo's traffic in the shapes that gateways log."""

from __future__ import annotations

import ast
import dataclasses
import gzip
import io
import json
import re
import sysconfig
import textwrap
import tokenize
import warnings
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal

from model_ops.files import library_sources

Kind = Literal["write", "complete", "explain", "mail"]
KINDS: tuple[Kind, ...] = ("write", "complete", "explain")

SOURCE_CHARACTERS = (80, 900)
TURN_CHARACTERS = (40, 1200)
DOCSTRING_CHARACTERS = (40, 600)

WORDING: dict[Kind, tuple[str, ...]] = {
    "write": ("Write {name} of {module}.", "Implement {name} for {module}.", "{module} needs {name}. Write it."),
    "complete": ("Complete {name} of {module}.", "Finish {name} in {module}.", "Continue this code of {module}."),
    "explain": ("Explain {name} of {module}.", "What does {name} in {module} do?", "Document {name} of {module}."),
}
"""Short, because the words around the code must not make different questions similar."""

_EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.\w+")


@dataclass(frozen=True)
class Function:
    """One function of the standard library."""

    module: str
    name: str
    signature: str
    source: str
    """Source code, dedented."""
    bare: str
    """Source code without its docstring."""
    docstring: str


@dataclass(frozen=True)
class DemoTurn:
    """One question with its answer."""

    function: Function | None
    """What a question about code is about."""
    kind: Kind
    question: str
    answer: str


@cache
def readable_functions() -> tuple[Function, ...]:
    """Functions of the modules reserved for traffic, with sources of 80 to 900 characters, in a fixed order, each source once.
    Functions with an e-mail address are left out, so that only planted addresses occur."""
    root = Path(sysconfig.get_path("stdlib"))
    functions: dict[str, Function] = {}
    for path in library_sources("traffic"):
        with tokenize.open(path) as file:
            text = file.read()
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for function in _functions(text, module):
            if not _EMAIL.search(function.source):
                functions.setdefault(function.bare, function)
    return tuple(functions.values())


def make_turn(function: Function, kind: Kind, wording: int = 0) -> DemoTurn | None:
    """The question of a kind about a function; None if the function is not suitable."""
    opening = WORDING[kind][wording % len(WORDING[kind])].format(name=function.name, module=function.module)
    if kind == "write":
        purpose = function.docstring.split("\n", 1)[0].strip()
        given, answer = function.signature + (f"\n    # {purpose}" if purpose else ""), function.source
    elif kind == "complete":
        lines = function.source.split("\n")
        if len(lines) < 4:
            return None
        half = len(lines) // 2
        given, answer = "\n".join(lines[:half]), "\n".join(lines[half:])
    else:
        shortest, longest = DOCSTRING_CHARACTERS
        if not shortest <= len(function.docstring) <= longest or not function.bare:
            return None
        given, answer = function.bare, function.docstring
    question = f"{opening}\n\n{given}"
    shortest, longest = TURN_CHARACTERS
    if not answer.strip() or not shortest <= len(question) + len(answer) <= longest:
        return None
    return DemoTurn(function, kind, question, answer)


def _functions(text: str, module: str) -> list[Function]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        tree = ast.parse(text)
    lines = text.split("\n")
    functions = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first, body = node.lineno - 1, node.body[0]
        source = _dedented(lines[first : node.end_lineno])
        if not SOURCE_CHARACTERS[0] <= len(source) <= SOURCE_CHARACTERS[1] or body.lineno == node.lineno:
            continue
        docstring = ast.get_docstring(node) or ""
        without = lines[first : body.lineno - 1] + lines[body.end_lineno : node.end_lineno] if docstring else []
        signature = _dedented(lines[first : _signature_end(lines, first, body.lineno - 1)])
        bare = _dedented(without) if docstring and len(node.body) > 1 else ("" if docstring else source)
        functions.append(Function(module, node.name, signature, source, bare or source, docstring if bare else ""))
    return functions


def _signature_end(lines: list[str], first: int, body: int) -> int:
    """The line after the end of the signature: comments may stand between it and the body."""
    for index in range(first, body):
        if lines[index].split("#")[0].rstrip().endswith(":"):
            return index + 1
    return body


def _dedented(lines: list[str]) -> str:
    return textwrap.dedent("\n".join(lines)).strip("\n")


MODEL = "coder-large"
LINES_OF_A_PART = 500


@dataclasses.dataclass
class DemoExchange:
    """A request with its conversation so far, and the response."""

    ts: datetime
    client: str
    workload: str
    session_id: str
    user: str
    messages: list[dict[str, str]]
    answer: str
    response_id: str
    temperature: float
    latency_ms: float
    ttft_ms: float
    finish_reason: str = "stop"
    failed: bool = False

    def again(self, response_id: str, seconds: int, failed: bool = False) -> DemoExchange:
        """The same request, sent at another moment of the same day."""
        moved = self.ts + timedelta(seconds=seconds)
        ts = moved if moved.date() == self.ts.date() else self.ts
        return dataclasses.replace(self, ts=ts, response_id=response_id, failed=failed)

    def texts(self) -> list[str]:
        return [message["content"] for message in self.messages] + ([] if self.failed else [self.answer])

    def request(self) -> dict[str, Any]:
        return {
            "model": MODEL,
            "messages": self.messages,
            "temperature": self.temperature,
            "max_tokens": 512,
            "user": self.user,
            "metadata": {"session_id": self.session_id},
        }

    def usage(self) -> dict[str, int]:
        prompt = sum(len(message["content"]) for message in self.messages) // 4
        completion = len(self.answer) // 4
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def response(self) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": "chat.completion",
            "created": int(self.ts.timestamp()),
            "model": MODEL,
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": self.answer}, "finish_reason": self.finish_reason}
            ],
            "usage": self.usage(),
        }


def gateway_pair(exchange: DemoExchange) -> bytes:
    """One line of a gateway's log. A failed request has an error body where the completion would be."""
    record: dict[str, Any] = {
        "timestamp": int(exchange.ts.timestamp()),
        "workload_id": exchange.workload,
        "client_id": exchange.client,
        "latency_ms": exchange.latency_ms,
        "ttft_ms": exchange.ttft_ms,
        "request": exchange.request(),
    }
    if exchange.failed:
        record["response"] = {
            "id": exchange.response_id,
            "error": {"message": "upstream overloaded", "type": "server_error", "code": 503},
        }
    else:
        record["response"] = exchange.response()
    return json.dumps(record).encode()


def litellm_payload(exchange: DemoExchange) -> bytes:
    """One object of LiteLLM's S3 logger (litellm/types/utils.py, StandardLoggingPayload)."""
    start = exchange.ts.timestamp()
    end = start + exchange.latency_ms / 1000
    record: dict[str, Any] = {
        "id": exchange.response_id,
        "trace_id": exchange.session_id,
        "call_type": "acompletion",
        "stream": True,
        "response_cost": round(exchange.usage()["total_tokens"] * 2e-7, 8),
        "cost_breakdown": None,
        "status": "failure" if exchange.failed else "success",
        "custom_llm_provider": "openai",
        **({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0} if exchange.failed else exchange.usage()),
        "startTime": start,
        "endTime": end,
        "completionStartTime": start + exchange.ttft_ms / 1000,
        "response_time": exchange.latency_ms / 1000,
        "model": MODEL,
        "model_id": "f3b1",
        "model_group": MODEL,
        "api_base": "http://upstream/v1",
        "metadata": {
            "user_api_key_alias": exchange.client,
            "spend_logs_metadata": {"workload_id": exchange.workload},
            "requester_metadata": {"session_id": exchange.session_id},
        },
        "cache_hit": False,
        "request_tags": [exchange.client],
        "end_user": exchange.user,
        "messages": exchange.messages,
        "response": None if exchange.failed else exchange.response(),
        "error_str": "upstream overloaded" if exchange.failed else None,
        "model_parameters": {"temperature": exchange.temperature, "max_tokens": 512, "stream": True},
        "hidden_params": {},
    }
    return json.dumps(record).encode()


def feedback_record(exchange: DemoExchange, up: bool, on_session: bool, when: datetime) -> str:
    """A thumb: value 1 or -1, on one response or on the whole session."""
    target = {"session_id": exchange.session_id} if on_session else {"response_id": exchange.response_id}
    record = {
        **target,
        "timestamp": when.isoformat(),
        "name": "thumbs",
        "value": 1 if up else -1,
        "label": "up" if up else "down",
        "source": exchange.client,
    }
    return json.dumps(record)


def write_gateway_hour(folder: Path, lines: list[bytes]) -> None:
    """The hour's lines as gzipped parts; gzip's time stamp is 0, so that the same lines give the same bytes."""
    folder.mkdir(parents=True)
    for part, start in enumerate(range(0, len(lines), LINES_OF_A_PART)):
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
            file.write(b"\n".join(lines[start : start + LINES_OF_A_PART]) + b"\n")
        (folder / f"part-{part:04d}.jsonl.gz").write_bytes(packed.getvalue())

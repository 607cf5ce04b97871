"""One exchange of the demo's traffic in the shapes that gateways log."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

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

"""The address at which agents reach the policy: OpenAI's chat completions, on this machine only.

    with SessionServer(sessions) as server:
        server.base_url                  # "http://127.0.0.1:40123/v1", to be used with the key of a session

A request is answered by the policy in training with the training's own temperature: what samples otherwise is not what learns,
so `temperature`, `top_p` and `seed` of a request count for nothing. What would change the answer's form is refused.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

from model_ops.environments.policy_sessions import PolicySessions, PolicyTurn, SessionError
from model_ops.rollouts import Sampled

MOST_BYTES = 64 << 20
"""Longest body of a request."""
MODEL = "policy"


class SessionServer:
    """A server in threads of its own, for as long as the block runs."""

    def __init__(self, sessions: PolicySessions):
        handler = type("PolicyRequest", (_Request,), {"sessions": sessions})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> SessionServer:
        threading.Thread(target=self._server.serve_forever, name="sessions", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    sessions: PolicySessions

    def do_GET(self) -> None:
        """The one model."""
        if not self.path.endswith("/models"):
            return self._say(404, _error("there is no such path"))
        self._say(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "millrace"}]})

    def do_POST(self) -> None:
        """Waits until the policy has answered."""
        try:
            body = self._body()
            turn = self.sessions.ask(self._key(), *read_chat(body))
            message, sampled = turn.message()
        except SessionError as error:
            return self._say(error.status, _error(str(error)))
        answer = written_chat(turn, message, sampled)
        kind, content = "application/json", json.dumps(answer).encode()
        if body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            events = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in streamed_chat(answer, usage))
            kind, content = "text/event-stream", events + b"data: [DONE]\n\n"
        try:
            turn.session.lost |= self._has_left()
            self._send(200, kind, content)
        except ConnectionError:
            turn.session.lost = True

    def _body(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        if length > MOST_BYTES:
            self.close_connection = True
            raise SessionError(f"the request has more than {MOST_BYTES:,} bytes")
        try:
            body = json.loads(self.rfile.read(length))
        except (ValueError, RecursionError) as error:
            raise SessionError("the request is not JSON") from error
        if not self.path.endswith("/chat/completions"):
            raise SessionError("there is only /chat/completions here", 404)
        if not isinstance(body, dict):
            raise SessionError("the request is not a JSON object")
        return body

    def _key(self) -> str:
        return (self.headers.get("x-api-key") or self.headers.get("Authorization") or "").removeprefix("Bearer ").strip()

    def _has_left(self) -> bool:
        """Whether the agent has closed its connection."""
        readable = select.select([self.connection], [], [], 0)[0]
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _say(self, status: int, content: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(content).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what agents say is in no log."""


def read_chat(body: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None, int | None]:
    """(messages, tools, most tokens of the answer) of a request. Raises SessionError for what cannot be answered."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise SessionError("messages is not a list of objects")
    if body.get("n") not in (None, 1):
        raise SessionError("n is not 1: each request has one answer")
    if body.get("stop"):
        raise SessionError("stop is given: answers end where the model ends them")
    if (body.get("response_format") or {}).get("type") not in (None, "text"):
        raise SessionError("response_format is given: the model is not guided while it learns")
    tools = None if body.get("tool_choice") == "none" else body.get("tools")
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    return messages, tools, most if isinstance(most, int) and most > 0 else None


def written_chat(turn: PolicyTurn, message: dict[str, Any], sampled: Sampled) -> dict[str, Any]:
    """The response to a request."""
    reason = "length" if not sampled.ended else "tool_calls" if message.get("tool_calls") else "stop"
    answer, prompt = len(sampled.tokens), turn.prompt_tokens
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer},
    }


def streamed_chat(answer: dict[str, Any], usage: bool) -> Iterator[dict[str, Any]]:
    """The same as events of a stream, with the whole answer in the first one. usage: whether the counts of tokens are asked
    for."""
    about = {name: answer[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    (choice,) = answer["choices"]
    calls = [{"index": place, **call} for place, call in enumerate(choice["message"].get("tool_calls") or ())]
    delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
    yield {**about, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**about, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    if usage:
        yield {**about, "choices": [], "usage": answer["usage"]}


def _error(text: str) -> dict[str, Any]:
    return {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": None}}

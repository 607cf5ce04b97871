"""The address at which agents reach the policy, on this machine only, in the forms of session_apis.py.

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
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from model_ops.environments.policy_sessions import PolicySessions, SessionError
from model_ops.environments.session_apis import APIS, MODEL, Answered

MOST_BYTES = 64 << 20
"""Longest body of a request."""


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
            return self._say(404, _error(SessionError("there is no such path")))
        self._say(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "millrace"}]})

    def do_POST(self) -> None:
        """Waits until the policy has answered."""
        api = next((api for path, api in APIS.items() if self.path.partition("?")[0].endswith(path)), None)
        try:
            body, key = self._body(), self._key()
            if api is None:
                raise SessionError(f"there is only {', '.join(APIS)} here", 404)
            session = self.sessions.session(key)
            try:
                asked = api.read(body, session.earlier)
            except (TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
                raise SessionError("the request is not in the form of this API") from error
            turn = self.sessions.ask(key, *asked)
            message, sampled = turn.message()
        except SessionError as error:
            return self._say(error.status, _error(error))
        reason = "length" if not sampled.ended else "tool_calls" if message.get("tool_calls") else "stop"
        answer = api.write(Answered(message, reason, turn.prompt_tokens, len(sampled.tokens)))
        session.earlier[answer["id"]] = turn.talk.messages
        kind, content = "application/json", json.dumps(answer).encode()
        if body.get("stream"):
            kind, content = "text/event-stream", b"".join(_events(api.stream(answer, body)))
        try:
            session.lost |= self._has_left()
            self._send(200, kind, content)
        except ConnectionError:
            session.lost = True

    def _body(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        if length > MOST_BYTES:
            self.close_connection = True
            raise SessionError(f"the request has more than {MOST_BYTES:,} bytes")
        try:
            body = json.loads(self.rfile.read(length))
        except (ValueError, RecursionError) as error:
            raise SessionError("the request is not JSON") from error
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


def _events(said: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Server-sent events; those of chat completions have no type, and end with [DONE]."""
    typed = False
    for each in said:
        typed = "type" in each
        yield (f"event: {each['type']}\n" if typed else "").encode() + b"data: " + json.dumps(each).encode() + b"\n\n"
    if not typed:
        yield b"data: [DONE]\n\n"


def _error(error: SessionError) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"message": str(error), "type": "invalid_request_error", "param": None, "code": error.code},
    }

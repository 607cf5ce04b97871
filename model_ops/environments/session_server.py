"""The address at which agents reach the policy, on this machine only, in the forms of session_apis.py.

The policy answers with the training's own temperature: what samples otherwise is not what learns, so `temperature`, `top_p` and
`seed` of a request count for nothing, and what else would change the answer is refused."""

from __future__ import annotations

import json
import re
import select
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from model_ops.environments.policy_sessions import PolicySessions, SessionError
from model_ops.environments.session_apis import APIS, MODEL, Answered

MOST_BYTES = 64 << 20
"""Longest body of a request."""
MOST_LINE_BYTES = 1 << 12
"""Longest line between chunks of a body."""
LINE_ENDS = (b"\r\n", b"\n")
ANTHROPIC_TYPES = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 503: "api_error"}


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

    def handle(self) -> None:
        """Answers until the agent ends, which need not close its connections."""
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        """The one model."""
        if not self.path.endswith("/models"):
            return self.send_error(404)
        self._say(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "millrace"}]})

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuses what is no request of an API, as the API would. A body may be left: the connection ends."""
        self.close_connection = True
        is_elsewhere = code in (404, 501)  # 501: a method that no path has
        text = f"there is only POST {', '.join(APIS)} here" if is_elsewhere or not message else message
        self._refuse(SessionError(text, 404 if is_elsewhere else code))

    def do_POST(self) -> None:
        """Waits until the policy has answered."""
        api = next((api for path, api in APIS.items() if self.path.partition("?")[0].endswith(path)), None)
        try:
            body = self._body()
            key = (self.headers.get("x-api-key") or self.headers.get("Authorization") or "").removeprefix("Bearer ").strip()
            if api is None:
                return self.send_error(404)
            session = self.sessions.session(key)
            try:
                turn = self.sessions.ask(key, *api.read(body, session.earlier))
            except (TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
                raise SessionError("the request is not in the form of this API") from error
            message, sampled = turn.message()
        except SessionError as error:
            return self._refuse(error)
        reason = "length" if not sampled.ended else "tool_calls" if message.get("tool_calls") else "stop"
        answer = api.write(Answered(message, reason, turn.prompt_tokens, len(sampled.tokens)))
        session.earlier[answer["id"]] = turn.talk.messages[bool(body.get("instructions")) :]
        session.earlier |= {item["id"]: [item] for item in answer.get("output", ())}
        kind, content = "application/json", json.dumps(answer).encode()
        if body.get("stream"):
            kind, content = "text/event-stream", b"".join(_events(api.stream(answer, body)))
        try:
            session.lost |= self._has_left()
            self._send(200, kind, content)
        except ConnectionError:
            session.lost = True

    def _body(self) -> dict[str, Any]:
        encoding = self.headers.get("Content-Encoding", "identity").lower()
        content = self._content()
        if encoding != "identity":
            raise SessionError("the request is compressed: send it without Content-Encoding", 415)
        try:
            body = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise SessionError("the request is not JSON") from error
        if not isinstance(body, dict):
            raise SessionError("the request is not a JSON object")
        return body

    def _content(self) -> bytes:
        """The bytes of the body. The connection ends where it is not clear where they end."""
        self.close_connection, stays = True, not self.close_connection
        coding, lengths = self.headers.get("Transfer-Encoding"), self.headers.get_all("Content-Length", [])
        if coding is None and not lengths:
            raise SessionError("the request has neither a Content-Length nor chunks", 411)
        is_length = coding is None and len(lengths) == 1 and re.fullmatch("[0-9]{1,18}", lengths[0].strip())
        if not is_length and (lengths or coding is None or coding.strip().lower() != "chunked"):
            raise SessionError("the end of the request is unclear: give one Content-Length, or Transfer-Encoding: chunked")
        content = b"".join([self._bytes(int(lengths[0]))] if is_length else self._chunks())
        self.close_connection = not stays
        return content

    def _chunks(self) -> Iterator[bytes]:
        """The pieces of a body with chunks (RFC 9112, 7.1), without its trailers."""
        count, size = 0, -1
        while size:
            line = re.fullmatch(rb"([0-9A-Fa-f]{1,15})[ \t]*(;.*)?\r?\n", self.rfile.readline(MOST_LINE_BYTES))
            if line is None:
                raise SessionError("a chunk of the request has no size")
            size = int(line[1], 16)
            yield self._bytes(size, before=count)
            count += size
            if size and self.rfile.readline(MOST_LINE_BYTES) not in LINE_ENDS:
                raise SessionError("a chunk of the request is longer than it says")
        while (trailer := self.rfile.readline(MOST_LINE_BYTES)) not in LINE_ENDS:
            count += len(trailer)
            if not trailer.endswith(b"\n") or count > MOST_BYTES:
                raise SessionError("the request ends within its chunks")

    def _bytes(self, count: int, before: int = 0) -> bytes:
        if before + count > MOST_BYTES:
            raise SessionError(f"the request has more than {MOST_BYTES:,} bytes", 413)
        content = self.rfile.read(count)
        if len(content) < count:
            raise SessionError("the request ends before its length")
        return content

    def _has_left(self) -> bool:
        """Whether the agent has closed its connection."""
        readable = select.select([self.connection], [], [], 0)[0]
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _say(self, status: int, content: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(content).encode())

    def _refuse(self, error: SessionError) -> None:
        said: dict[str, Any] = {"message": str(error), "type": "invalid_request_error"}
        if getattr(self, "path", "").partition("?")[0].endswith("/messages"):
            said["type"] = ANTHROPIC_TYPES.get(error.status, said["type"])
            return self._say(error.status, {"type": "error", "error": said})
        self._say(error.status, {"error": {**said, "param": error.param, "code": error.code}})

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
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

"""Passes HTTP requests on to one of several servers, answers untouched, streams included.

What decides (`routes.py`) is apart from what passes on. A request's body is held in memory. An answer is written
as it arrives; a short one whose length is known is written at once.

A request is sent again, to another server if there is one, if the connection was refused or lost before any byte of the answer
was passed on, and if a release's server that is no longer healthy answered 5xx: completions change nothing at a server, so a
repeated one costs only its time. It is sent at most MOST_SENT times (`most_sent`) to a server that takes it, since it may be
what ended the others. While no server takes it, it waits. Uvicorn closes idle connections after 5 s, so
connections are kept for less.

Where a server has several models (`Naming`), a request's field `model` decides, and only that field and the fingerprint are
changed on the way."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from model_ops.machine import Backoff
from resources.gateway.routes import (
    Backend,
    Exchange,
    NameReplacer,
    NoBackend,
    NoModelNamedError,
    Routes,
    Watcher,
    model_of,
    session_of,
)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
MOST_WAITING_BYTES = 256 << 20
"""Bodies of waiting requests together: further requests are refused."""
WAITS_FOR = ("POST", "/v1/")
"""Other requests ask for the state of a server, and whoever asks has to hear that there is none."""


class WaitingRoom:
    """wait_s: seconds that a request waits at most; 0: none does. most_bytes: of the bodies that wait together."""

    def __init__(self, wait_s: float, most_bytes: int = MOST_WAITING_BYTES):
        self.wait_s, self.most_bytes = wait_s, most_bytes
        self.requests, self._bytes, self._ended = 0, 0, False
        self._changed = asyncio.Event()

    def begin(self, method: str, path: str, size: int) -> WaitingRequest:
        """The waiting of one request, of which nothing has passed yet."""
        waits = method == WAITS_FOR[0] and path.startswith(WAITS_FOR[1])
        return WaitingRequest(self, size, time.monotonic() + self.wait_s if waits else 0.0)

    def wake(self) -> None:
        """Lets every waiting request try again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """Waiting requests, and later ones, are refused."""
        self._ended = True
        self.wake()

    async def _pause(self, size: int, seconds: float) -> bool:
        if self._ended or seconds <= 0 or self._bytes + size > self.most_bytes:
            return False
        self.requests, self._bytes = self.requests + 1, self._bytes + size
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)
        finally:
            self.requests, self._bytes = self.requests - 1, self._bytes - size
        return not self._ended


class WaitingRequest:
    """until: when its time is over (time.monotonic)."""

    def __init__(self, waiting: WaitingRoom, size: int, until: float):
        self._waiting, self._size, self._until = waiting, size, until
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)

    async def again(self) -> bool:
        """Waits; whether the request may be tried again."""
        seconds = min(self._backoff.begin(), self._until - time.monotonic())
        return await self._waiting._pause(self._size, seconds)


RELEASE_HEADER = "X-Millrace-Release"
"""In an answer: the release that gave it. In a request: the release that shall answer."""
TARGET_HEADER = "X-Millrace-Target"
"""In an answer: the digest of the weights that gave it."""
HOP_BY_HOP = frozenset({"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"})
HOP_BY_HOP |= {"te", "trailer", "transfer-encoding", "upgrade", "host", "content-length", "expect"}
"""Headers of one connection (RFC 9110, 7.6.1), and those that are written anew."""
MOST_TRIES = 3
"""Servers that are tried before a request waits."""
MOST_SENT = 3
KEPT_S = 2.0
"""How long an unused connection to a server is kept: less than servers keep theirs."""
WHOLE_BYTES = 1 << 20
"""Answers of a known length up to this are read before the first byte is written."""
CHANGED_BYTES = 16 << 20
"""The same of answers that are changed on the way, of which JSON is read whole even if its length is not known."""
JSON = "application/json"
CONNECTS_WITHIN_S = 5.0
HEALTH_WITHIN_S = 2.0
SERVER_FAILED = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)
RETRY_AFTER_S = "2"
REFUSED = "invalid_request_error"


class PassThrough:
    """Counts requests in flight by server. refused: answers that the front gave itself because no server could. broken: answers
    that ended in the middle. watcher: who sees requests and answers. wait_s: seconds that a request waits while no server
    takes it."""

    def __init__(self, watcher: Watcher | None = None, wait_s: float = 0.0, most_sent: int = MOST_SENT) -> None:
        self._most_sent, self.refused, self.broken = most_sent, 0, 0
        self._routes, self.watcher, self.waiting = Routes(), watcher, WaitingRoom(wait_s)
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECTS_WITHIN_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    @property
    def routes(self) -> Routes:
        """The servers that take new requests. Setting them lets waiting requests try again."""
        return self._routes

    @routes.setter
    def routes(self, routes: Routes) -> None:
        self._routes = routes
        self.waiting.wake()

    async def close(self) -> None:
        await self._client.close()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Sends the request to a server and its answer back."""
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            if self.watcher is not None:
                self.watcher.refuses(request)
            raise
        exchange = self.watcher.begins(request, body) if self.watcher is not None else None
        try:
            return await self._answered(request, body, exchange)
        except asyncio.CancelledError:
            if exchange is not None:
                exchange.ends("the client left")
            raise

    async def _answered(self, request: web.Request, body: bytes, exchange: Exchange | None) -> web.StreamResponse:
        waited = self.waiting.begin(request.method, request.path, len(body))
        tried: list[Backend] = []
        failed: list[Backend] = []
        while True:
            try:
                models = self.routes.models  # others after a wait
                model = model_of(body, models) if models and request.method == "POST" else None
                backend = self._choose(request, body, tried, failed, model)
            except NoModelNamedError as error:
                if exchange is not None:
                    exchange.refused(error.status, str(error))
                return error_response(error.status, str(error), REFUSED)
            except NoBackend:
                may_come = bool(tried) or not self.routes  # not: one that is asked for by name while others answer
                if may_come and len(failed) < self._most_sent and await waited.again():
                    tried = []
                    continue
                self.refused += 1
                why = "the server does not answer" if tried else "no such release answers now"
                if exchange is not None:
                    exchange.refused(503, why)
                return error_response(503, why, "server_error", {"Retry-After": RETRY_AFTER_S})  # which clients repeat
            tried.append(backend)
            backend.in_flight += 1  # before anything is awaited: who drains a server must see each of its requests
            try:
                if backend in failed and backend.release and not await self._is_healthy(backend):
                    continue
                return await self._ask(backend, request, body, exchange)
            except _NotAnswered as error:
                failed += [backend] * error.sent
            finally:
                backend.in_flight -= 1

    def _choose(
        self, request: web.Request, body: bytes, tried: list[Backend], failed: list[Backend], model: str | None
    ) -> Backend:
        """A server that was not tried, else one that was: its connection may have been an old one. failed: those that took
        the request and did not answer it. Raises NoBackend."""
        if len(tried) >= MOST_TRIES or len(failed) >= self._most_sent:
            raise NoBackend
        routes, release = self.routes, request.headers.get(RELEASE_HEADER)
        if release is not None and not any(route.backend.release for route in routes.routes):
            release = None  # for the server behind, which is another front
        choosing = len(routes) > 1 and release is None and model is None
        session = session_of(request.headers, body) if choosing else None
        try:
            return routes.choose(session, tried, release, model)
        except NoBackend:
            return routes.choose(session, release=release, model=model)

    async def _ask(self, backend: Backend, request: web.Request, body: bytes, exchange: Exchange | None) -> web.StreamResponse:
        """Raises _NotAnswered if no byte of an answer was passed on, and another server may give one."""
        sent = body if exchange is None else exchange.body
        passed_on, renamed = _passed_on(request.headers), None
        if backend.naming is not None and request.method == "POST":
            sent, renamed = backend.naming.asked(sent), backend.naming.answer()
        if renamed is not None or (exchange is not None and exchange.wants_whole):
            passed_on.popall("Accept-Encoding", None)  # a compressed answer could not be changed
        asked = self._client.request(
            request.method,
            URL(backend.url + request.raw_path, encoded=True),
            data=sent or None,
            headers=passed_on,
            allow_redirects=False,
        )
        try:
            answer = await asked
        except SERVER_FAILED as error:
            refused = isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))
            raise _NotAnswered(sent=not refused) from error
        async with answer:
            headers = _passed_on(answer.headers)
            if backend.release:
                headers[RELEASE_HEADER] = backend.release
            if backend.digest:
                headers[TARGET_HEADER] = backend.digest
            length = answer.content_length
            most = CHANGED_BYTES if exchange is not None and exchange.wants_whole else WHOLE_BYTES
            try:
                is_short = length is not None and length <= most
                first = await (answer.read() if is_short else answer.content.readany())
                if length is None and most == CHANGED_BYTES and answer.content_type == JSON:
                    first, is_short = await _read_up_to(answer, first, most)
            except SERVER_FAILED as error:
                raise _NotAnswered(sent=True) from error
            if answer.status >= 500 and is_short and backend.release and not await self._is_healthy(backend):
                raise _NotAnswered(sent=True)
            if exchange is not None:
                exchange.starts(backend, answer.status, headers, length if renamed is None else None)
            if is_short:
                if exchange is not None and exchange.asks_again(first):
                    raise _NotAnswered(sent=False)
                first = renamed.part(first) + renamed.rest() if renamed is not None else first
                if exchange is not None:
                    first = exchange.whole(first)
                return web.Response(body=first, status=answer.status, reason=answer.reason, headers=headers)
            response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
            response.content_length = length if renamed is None else None
            try:
                await response.prepare(request)
                await self._write(response, first, answer, request, exchange, renamed)
            finally:
                if exchange is not None:
                    exchange.ends("the client left")  # does nothing where the answer is over
            return response

    async def _is_healthy(self, backend: Backend) -> bool:
        """Whether a server that did not answer a request goes on. One that is too busy to say so does."""
        try:
            async with self._client.get(f"{backend.url}/health", timeout=aiohttp.ClientTimeout(HEALTH_WITHIN_S)) as answer:
                return answer.status < 500
        except TimeoutError:
            return True
        except aiohttp.ClientError:
            return False

    async def _write(
        self,
        response: web.StreamResponse,
        part: bytes,
        answer: aiohttp.ClientResponse,
        request: web.Request,
        exchange: Exchange | None,
        renamed: NameReplacer | None,
    ) -> None:
        """Writes the answer as it arrives. If the server breaks it off, so is the client's connection: the client must see that
        the answer is not whole."""
        while part:
            await self._pass(response, part if renamed is None else renamed.part(part), exchange)
            try:
                part = await answer.content.readany()
            except SERVER_FAILED:
                self.broken += 1
                if exchange is not None:
                    exchange.ends("the server broke it off")
                if request.transport is not None:
                    request.transport.abort()
                return
        if renamed is not None:
            await self._pass(response, renamed.rest(), exchange)
        if exchange is not None:
            exchange.ends()
        await response.write_eof()

    async def _pass(self, response: web.StreamResponse, part: bytes, exchange: Exchange | None) -> None:
        if not part:  # all of it waits for what follows
            return
        if exchange is not None:
            exchange.part(part)
        await response.write(part)


async def _read_up_to(answer: aiohttp.ClientResponse, first: bytes, most: int) -> tuple[bytes, bool]:
    """What came of an answer, and whether that is all of it. Ends once there is more than `most`."""
    parts, size = [first], len(first)
    while size <= most:
        part = await answer.content.readany()
        if not part:
            return b"".join(parts), True
        parts.append(part)
        size += len(part)
    return b"".join(parts), False


class _NotAnswered(Exception):
    """The server gave no answer, and the client has seen nothing of one. sent: whether the server may have read the request."""

    def __init__(self, sent: bool):
        super().__init__(sent)
        self.sent = sent


def error_response(status: int, message: str, kind: str, headers: dict[str, str] | None = None) -> web.Response:
    """An error in OpenAI's form."""
    said = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return web.Response(status=status, text=json.dumps(said), content_type="application/json", headers=headers)


def _passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """A message's headers without those of its connection."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    return CIMultiDict(
        (name, value) for name, value in headers.items() if (lower := name.lower()) not in HOP_BY_HOP and lower not in named
    )

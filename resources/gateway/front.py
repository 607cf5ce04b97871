"""The front of an endpoint: one address for clients, whatever server answers behind it.

It runs in a thread with its own event loop. /health says 200 and which releases answer, or 503. Other paths are passed on if
they begin with one of PASSED, or of those that `passes` names; paths that change a server's adapters are not."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aiohttp import web

from resources.gateway.pass_through import MOST_SENT, PassThrough, error_response
from resources.gateway.routes import Route, Routes, Watcher

PASSED = ("/v1/", "/metrics", "/version", "/tokenize", "/detokenize")
NOT_PASSED = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
"""Paths below /v1/ that change what a server serves."""
MOST_BYTES = 64 << 20
"""Longest body of a request."""
STARTS_WITHIN_S = 20.0
ENDS_WITHIN_S = 5.0


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FrontError(Exception):
    """The front cannot listen at its address."""


class Front:
    """Raises FrontError on entering if the address cannot be used. drain_s: how long requests in flight have when the block
    ends. watcher: who sees what passes through. answers: further paths that the front answers itself, "POST /feedback" for one,
    with a handler in its event loop. wait_s: seconds that a request waits while no server takes it; 0: it gets 503 at once.
    passes: begins of the paths that are passed on. most_sent: how often a request is sent to servers that take it and do not
    answer."""

    def __init__(
        self,
        host: str,
        port: int,
        drain_s: float = 60.0,
        watcher: Watcher | None = None,
        answers: Mapping[str, Handler] | None = None,
        wait_s: float = 0.0,
        passes: tuple[str, ...] = PASSED,
        most_sent: int = MOST_SENT,
    ):
        self.host, self.port, self.drain_s, self.wait_s = host, port, drain_s, wait_s
        self.passes, self.most_sent = passes, most_sent
        self._watcher, self._answers = watcher, answers or {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="front", daemon=True)
        self._ending = False
        self._began = int(time.time())

    @property
    def url(self) -> str:
        """Where clients of this machine find it."""
        return f"http://{own_host(self.host)}:{self.port}"

    def __enter__(self) -> Front:
        self._thread.start()
        try:
            self._do(self._start(), STARTS_WITHIN_S)
        except OSError as error:
            self._stop_loop()
            taken = error.errno == errno.EADDRINUSE
            why = "another program listens there" if taken else error.strerror or str(error)
            raise FrontError(f"{self.host}:{self.port} cannot be listened on ({why}): give another --port or --host") from error
        return self

    def __exit__(self, *_: object) -> None:
        """Takes no new connection, and waits for requests in flight."""
        try:
            self._do(self._end(), self.drain_s + 2 * ENDS_WITHIN_S)
        finally:
            self._stop_loop()

    @property
    def routes(self) -> Sequence[Route]:
        """The servers that take new requests."""
        return self._passing.routes.routes

    @property
    def refused(self) -> int:
        """Requests that were answered with 503 because no server answered."""
        return self._passing.refused

    @property
    def broken(self) -> int:
        """Answers that ended in the middle because their server did."""
        return self._passing.broken

    def switch(self, routes: Sequence[Route]) -> None:
        """From its return on, new requests go to these servers."""

        async def replace() -> None:
            self._passing.routes = Routes(tuple(routes))

        self._do(replace(), STARTS_WITHIN_S)

    async def _start(self) -> None:
        self._passing = PassThrough(self._watcher, self.wait_s, self.most_sent)
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_get("/health", self._health)
        for place, handler in self._answers.items():
            method, path = place.split(" ", 1)
            app.router.add_route(method, path, handler)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, auto_decompress=False, shutdown_timeout=max(self.drain_s, 0.01)
        )  # aiohttp reads 0 as no limit
        await self._runner.setup()
        try:
            site = web.TCPSite(self._runner, self.host, self.port, backlog=1_024, reuse_address=True)
            await site.start()
        except OSError:
            await self._runner.cleanup()
            await self._passing.close()
            raise
        self.port = self._runner.addresses[0][1]

    async def _end(self) -> None:
        self._ending = True
        self._passing.waiting.end()
        await self._runner.cleanup()
        await self._passing.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if not path.startswith(self.passes) or path.rstrip("/") in NOT_PASSED or ".." in path.split("/"):
            return error_response(404, f"{path} is not served here", "invalid_request_error")
        if path.rstrip("/") == "/v1/models" and self._passing.routes.models:
            return self._models()
        try:
            return await self._passing.answer(request)
        except web.HTTPRequestEntityTooLarge:
            return error_response(413, f"the request is longer than {MOST_BYTES >> 20} MiB", "invalid_request_error")

    def _models(self) -> web.Response:
        """The models between which requests choose: a shared server's own list has its base, and versions of each."""
        about = {"object": "model", "created": self._began, "owned_by": "millrace"}
        listed = [{"id": name, **about} for name in self._passing.routes.models]
        return web.Response(text=json.dumps({"object": "list", "data": listed}), content_type="application/json")

    async def _health(self, _: web.Request) -> web.Response:
        routes = self._passing.routes.routes
        ready = bool(routes) and not self._ending
        releases = [
            {"release": backend.release, "share": route.share, "in_flight": backend.in_flight}
            | ({"model": backend.naming.model} if backend.naming else {})
            for route in routes
            for backend in [route.backend]
        ]
        said = {"status": "ok" if ready else "unavailable", "releases": releases}
        return web.Response(status=200 if ready else 503, text=json.dumps(said), content_type="application/json")

    def _do(self, work: Coroutine[Any, Any, None], seconds: float) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def _stop_loop(self) -> None:
        with suppress(TimeoutError):
            self._do(_end_tasks(), ENDS_WITHIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ENDS_WITHIN_S)
        if not self._thread.is_alive():
            self._loop.close()


async def _end_tasks() -> None:
    """Ends what is still at work in the loop, such as requests that outlived their time: the loop is about to stop."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=ENDS_WITHIN_S / 2)


EVERYWHERE = ("0.0.0.0", "::")
"""Addresses of a server that listens on all of the machine's."""


def own_host(host: str) -> str:
    """The host part of a URL by which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)

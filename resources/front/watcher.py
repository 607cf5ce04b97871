"""Who sees what passes through the front, such as the capture layer.

Methods are called in the front's event loop, before the bytes that they see are passed on. They must return at once and must
not raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aiohttp import web

from resources.front.routes import Backend


class Exchange(Protocol):
    """One request with its answer."""

    body: bytes
    """What is sent to the server."""

    @property
    def wants_whole(self) -> bool:
        """Whether an answer that is no stream is to be passed on in one part, if it is not too long."""

    def starts(self, backend: Backend, status: int, headers: Mapping[str, str], length: int | None) -> None:
        """A server began to answer. length: bytes of the answer, where the server says it."""

    def asks_again(self, answer: bytes) -> bool:
        """Whether this short answer is refused, and the request sent again with another body."""

    def whole(self, answer: bytes) -> bytes:
        """An answer of one part; returns what the client gets."""

    def part(self, data: bytes) -> None:
        """A part of an answer."""

    def ends(self, problem: str = "") -> None:
        """The answer is over. problem: why it is not whole, in words."""

    def refused(self, status: int, why: str) -> None:
        """No server could answer; the front did."""


class Watcher(Protocol):
    """Sees the requests of a front."""

    def begins(self, request: web.Request, body: bytes) -> Exchange | None:
        """None for a request that does not concern it."""

    def refuses(self, request: web.Request) -> None:
        """The front answered 413: the body is too long."""

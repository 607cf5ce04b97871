"""Which server answers a request: the servers in use, the share of each, the choice by session, and who watches (`Watcher`).

Routes never change: a switch replaces the whole object. The session is read, in this order, from the header X-Session-Id, and
in a JSON body from `session_id`, `metadata.session_id`, `prompt_cache_key` and `user`. A body is parsed only by callers that
have more than one server to choose from.

A watcher's methods are called in the front's event loop, before the bytes that they see are passed on. They must return at once
and must not raise."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import xxhash
from aiohttp import web


class NoModelNamedError(Exception):
    """A request that names none of the models that are served. status: HTTP status for the client."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Naming:
    model: str
    """Model in requests and in answers."""
    served_as: str
    """The server's name for it."""
    fingerprint: str = ""
    """What answers carry."""
    server_fingerprint: str = ""
    """What the server writes into all answers, which is replaced; "" for none."""

    def asked(self, body: bytes) -> bytes:
        """A request with the server's name of the model. The body is a JSON object with a field `model`."""
        said = json.loads(body)
        return json.dumps({**said, "model": self.served_as}).encode()

    def answer(self) -> NameReplacer:
        fields = [("model", self.served_as, self.model)]
        if self.server_fingerprint:
            fields.append(("system_fingerprint", self.server_fingerprint, self.fingerprint))
        return NameReplacer(
            [(_field(name, space, old), _field(name, space, new)) for name, old, new in fields for space in ("", " ")]
        )


class NameReplacer:
    """An answer in which texts are replaced as its parts arrive. What may be the beginning of such a text waits for the next
    part; the end of an event of a stream never does."""

    def __init__(self, pairs: list[tuple[bytes, bytes]]):
        self._pairs, self._held = pairs, b""
        self._longest = max(len(old) for old, _ in pairs)

    def part(self, data: bytes) -> bytes:
        text = self._held + data
        for old, new in self._pairs:
            text = text.replace(old, new)
        ends = self._beginning_at(text)
        self._held = text[ends:]
        return text[:ends]

    def _beginning_at(self, text: bytes) -> int:
        """Where the beginning of a text that may be replaced stands at the end; the length if there is none. Each of these
        texts begins with a quotation mark and has no line feed."""
        place = -1 if text.endswith(b"\n") else text.find(b'"', max(0, len(text) - self._longest + 1))
        while place >= 0 and not any(old.startswith(text[place:]) for old, _ in self._pairs):
            place = text.find(b'"', place + 1)
        return place if place >= 0 else len(text)

    def rest(self) -> bytes:
        """What still waits, at the answer's end."""
        held, self._held = self._held, b""
        return held


def model_of(body: bytes, known: list[str]) -> str:
    """The model that a request names; the only one there is, where it names none. Raises NoModelNamedError."""
    try:
        said: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NoModelNamedError("the body is no JSON, so it names no model", 400) from error
    named = said.get("model") if isinstance(said, dict) else None
    if named in (None, "") and isinstance(said, dict) and len(known) == 1:
        return known[0]
    if not isinstance(named, str) or not named:
        raise NoModelNamedError(f"the request names no model; there are: {', '.join(known)}", 400)
    if named not in known:
        raise NoModelNamedError(f"no such model is served; there are: {', '.join(known)}", 404)
    return named


def _field(name: str, space: str, value: str) -> bytes:
    return f'"{name}":{space}{json.dumps(value)}'.encode()


class NoBackend(Exception):
    """No server is left that could answer."""


@dataclass(eq=False)
class Backend:
    """A server."""

    url: str
    """What a request's path is added to."""
    release: str
    """Version that it serves; empty for a server without a release."""
    in_flight: int = 0
    """Requests that it has not answered in full; changed by the pass-through only, in its event loop."""
    digest: str = ""
    """Digest of the weights that it serves."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that it applies where a request names none."""
    naming: Naming | None = None
    """Which of a server's models this is; None for a server that has one. Each model of a shared server is a Backend, so its
    requests are counted apart."""


@dataclass(frozen=True)
class Route:
    """A server and its share of the sessions."""

    backend: Backend
    share: float = 1.0


@dataclass(frozen=True)
class Routes:
    """The servers that take new requests. The shares need not add up to 1."""

    routes: Sequence[Route] = field(default_factory=tuple)

    @property
    def models(self) -> list[str]:
        """Names of the models between which requests choose; [] where all servers answer for the same one."""
        return list(dict.fromkeys(route.backend.naming.model for route in self.routes if route.backend.naming is not None))

    def choose(
        self, session: str | None, without: Collection[Backend] = (), release: str | None = None, model: str | None = None
    ) -> Backend:
        """The server of a session, or of a request without one. without: servers to leave out. release: choose the server of
        this release; model: one that serves this model. Raises NoBackend if none is left."""
        left = [
            route
            for route in self.routes
            if route.backend not in without
            and release in (None, route.backend.release)
            and (model is None or (route.backend.naming is not None and route.backend.naming.model == model))
        ]
        if not left:
            raise NoBackend
        place = sum(route.share for route in left) * (random.random() if session is None else place_of(session))
        for route in left:
            place -= route.share
            if place < 0:
                return route.backend
        return left[-1].backend

    def __len__(self) -> int:
        return len(self.routes)


def place_of(session: str) -> float:
    """A number in [0, 1) that depends on the session's text only: also after a restart, and on another machine."""
    return xxhash.xxh3_64_intdigest(session.encode("utf-8", "surrogatepass")) / 2**64


HEADER = "X-Session-Id"
FIELDS = ("session_id", "prompt_cache_key", "user")


def session_of(headers: Mapping[str, str], body: bytes) -> str | None:
    """None for a request that names no session."""
    if named := headers.get(HEADER):
        return named
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):  # no JSON: the server will say so
        return None
    if not isinstance(said, dict):
        return None
    metadata = said.get("metadata")
    candidates: list[Any] = [
        said.get(FIELDS[0]),
        metadata.get(FIELDS[0]) if isinstance(metadata, dict) else None,
        *(said.get(name) for name in FIELDS[1:]),
    ]
    return next((text for text in candidates if isinstance(text, str) and text), None)


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

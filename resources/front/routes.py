"""Which server answers a request: the servers in use, the share of each, and the choice by session.

    routes = Routes([Route(stable, 0.9), Route(canary, 0.1)])
    routes.choose(session="s-17")                   # the same server for every request of a session
    routes.choose(session=None)                     # by chance
    routes.choose(session="s-17", without=[canary]) # after canary refused the connection

Routes never change: a switch replaces the whole object.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from resources.front.naming import Naming


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

    def choose(self, session: str | None, without: Collection[Backend] = (), release: str | None = None,
               model: str | None = None) -> Backend:
        """The server of a session, or of a request without one. without: servers to leave out. release: choose the server of
        this release; model: one that serves this model. Raises NoBackend if none is left."""
        left = [route for route in self.routes if route.backend not in without and release in (None, route.backend.release)
                and (model is None or (route.backend.naming is not None and route.backend.naming.model == model))]
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

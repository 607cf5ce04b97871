"""Runs each release in a server of its own, for follow.py.

host = ServerHost(lake, settings, say, scraper)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from resources.lake import LakeLayout
from resources.monitoring import Scraper
from resources.serving.follow import Say, Slot
from resources.serving.release_server import ReleaseServer, ServeSettings


class ServerHost:
    """scraper: reads the metrics of servers from their first request to their last."""

    def __init__(self, lake: LakeLayout, settings: ServeSettings, say: Say, scraper: Scraper | None = None):
        self.settings = settings
        self.servers: list[ReleaseServer] = []
        self._lake, self._say = lake, say
        self._scraper = scraper if settings.program.kind != "transformers" else None

    def name(self, slot: Slot) -> str:
        return slot.alias

    def start(self, slot: Slot, directory: Path, meanwhile: Callable[[], None]) -> ReleaseServer:
        self._say(f"{slot.alias}: release {directory.name} is verified and starts in {self.settings.program.kind}")
        server = ReleaseServer.start(self._lake, directory, self.settings, meanwhile, self._say)
        self.servers.append(server)
        return server

    def begin(self, loaded: ReleaseServer) -> None:
        if self._scraper is not None:
            self._scraper.begins(loaded.backend.url, loaded.directory.name)

    def discard(self, loaded: ReleaseServer) -> None:
        self.servers.remove(loaded)
        loaded.close()

    def stop(self, loaded: ReleaseServer, late: int, drain_s: float) -> None:
        self.close_ended(loaded)
        lost = f", {late} requests that took more than {drain_s:g} s were cut off" if late else ""
        self._say(f"{loaded.what} is stopped{lost}")

    def close_ended(self, server: ReleaseServer) -> None:
        """Ends a server, after its last window was read."""
        self.servers.remove(server)
        if self._scraper is not None:
            self._scraper.ends(server.backend.url, gone=server.ended)
        server.close()

    def close(self) -> None:
        for server in list(self.servers):
            self.close_ended(server)

"""Serves what aliases of an endpoint name, and follows them: the new release is started beside the old one, tried, switched to,
and the old one is stopped when it has answered its last request.

    following = Following(lake, "math-tutor", front, settings, [Slot("champion", 1.0)], say)
    following.bring_up()         # raises ServeError if the champion cannot be served
    while True: following.look(); sleep(2)
    following.close()

A release that cannot be started or fails its smoke set is refused: what served before goes on, the reason is told, and the
release is not tried again until its alias names another one. Where nothing served before, it is tried again, and so is a server
that ends by itself, after pauses that grow. At most one server more than needed runs at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from model_ops.evaluation.smoke.smoke_set import failed
from resources.front.front import Front
from resources.front.routes import Route
from resources.lake import Lake
from resources.releasing.endpoint_log import EndpointLogError
from resources.releasing.endpoints import Endpoint, EndpointError
from resources.scraping.scraper import Scraper
from resources.serving.programs import ServeError
from resources.serving.release_server import ReleaseServer, ServeSettings, verified_release
from resources.signing.keys import KeyProblemError
from stores.lake_error import LakeError
from stores.s3 import S3Error

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_S = 600.0
"""After a server that ran so long, pauses are short again."""
NOT_NOW = (EndpointError, EndpointLogError, KeyProblemError, LakeError, S3Error, OSError)
"""What a person or time mends, so that the same release may be tried again."""

Say = Callable[[str], None]


@dataclass
class Slot:
    """An alias that takes a share of the sessions. serving: version of the release that answers for it. refused: version that
    is not tried again."""

    alias: str
    share: float
    serving: str | None = None
    refused: str | None = None


@dataclass
class _Retired:
    """A server that takes no new request. until: when it is stopped in any case (time.monotonic)."""

    server: ReleaseServer
    until: float


class Following:
    """The servers of a workload's aliases behind a front. drain_s: seconds that a replaced server has for its requests. say: is
    told what happens, one sentence each. scraper: reads the metrics of servers from their first request to their last."""

    def __init__(self, lake: Lake, workload: str, front: Front, settings: ServeSettings, slots: Sequence[Slot], say: Say,
                 drain_s: float = 600.0, scraper: Scraper | None = None):
        self._scraper = scraper if settings.program.kind != "transformers" else None
        self._lake, self._workload, self._front, self._settings = lake, workload, front, settings
        self._slots, self._say, self._drain_s = slots, say, drain_s
        self._servers: dict[str, ReleaseServer] = {}
        self._retired: list[_Retired] = []
        self._began: dict[str, float] = {}
        self._pauses: dict[str, tuple[float, float]] = {}
        """By version: when it may be started again (time.monotonic), and the pause after the next failure, in seconds."""
        self._told: dict[str, str] = {}
        """What was told last about the aliases, and about each version."""

    def bring_up(self) -> None:
        """Starts what the first slot's alias names, and then the others, which may be refused. Raises ServeError if the alias
        names nothing or its release cannot be served."""
        named = Endpoint(self._lake, self._workload).read().all()
        first, *others = self._slots
        if (version := named.get(first.alias)) is None:
            there = ", ".join(named) or "none"
            raise ServeError(f"{self._workload} has no release under the alias {first.alias}; there are: {there}. Approve one: "
                             "millrace approve VERSION")
        self._serve(first, version)
        for slot in others:
            self._follow(slot, named.get(slot.alias))

    def look(self) -> None:
        """Compares what serves with what the aliases name, and does the next step. Blocks while a server starts."""
        self._stop_idle()
        self._notice_ended()
        try:
            named = Endpoint(self._lake, self._workload).read().all()
        except NOT_NOW as error:
            self._tell_once("aliases", f"the aliases of {self._workload} cannot be read, so what serves goes on: {error}")
            return
        if (alias := self._slots[0].alias) not in named:
            self._tell_once("aliases", f"{self._workload} has no release under the alias {alias}: what serves goes on")
        else:
            self._told.pop("aliases", None)
        for slot in self._slots:
            self._follow(slot, named.get(slot.alias))

    def ended(self) -> list[ReleaseServer]:
        """Servers in use that have ended by themselves."""
        return [server for server in self._servers.values() if server.ended]

    def close(self) -> None:
        """Stops all servers. The front is drained first, by whoever opened it."""
        for server in [*self._servers.values(), *(each.server for each in self._retired)]:
            self._close(server)
        self._servers, self._retired = {}, []

    def _follow(self, slot: Slot, version: str | None) -> None:
        if version is None:
            if slot is not self._slots[0] and slot.serving is not None:
                self._say(f"no release is named {slot.alias} any more")
                slot.serving = None
                self._route()
            return
        if version != slot.refused:
            slot.refused = None
        if version in (slot.serving, slot.refused) or time.monotonic() < self._pauses.get(version, (0.0, 0.0))[0]:
            return
        if self._retired and not self._revived(version):  # memory for one server more than needed, not for two
            return
        try:
            self._serve(slot, version)
        except (ServeError, *NOT_NOW) as error:
            self._route()  # a server that was taken back into use is not needed
            if isinstance(error, ServeError) and slot.serving is not None:
                slot.refused = version
                self._say(f"{slot.alias}: {error}; release {slot.serving} goes on, and release {version} is not tried again "
                          "until the alias moves")
                return
            self._pauses[version] = paused(self._pauses.get(version))
            self._tell_once(version, f"{slot.alias}: release {version} cannot be served now, and is tried again: {error}")
        else:
            self._told.pop(version, None)

    def _serve(self, slot: Slot, version: str) -> None:
        """Verifies the release, starts and tries a server of it unless one runs, and switches to it. Raises ServeError."""
        directory = verified_release(self._lake, self._workload, version, slot.alias)
        if version not in self._servers:
            self._servers[version] = self._started(directory, slot.alias)
            self._began[version] = time.monotonic()
            if self._scraper is not None:
                self._scraper.begins(self._servers[version].backend.url, version)
        slot.serving = version
        self._route()
        server = self._servers[version]
        drafter = ", drafting" if server.drafts else ""
        share = "" if slot.share == 1 else f" to {slot.share:z.0%} of the sessions"
        self._say(f"{slot.alias}: release {version} answers{share} on {self._front.url} ({server.program.kind}{drafter})")

    def _revived(self, version: str) -> bool:
        """Takes a server of the release back into use if one still answers its last requests: a rollback then takes no time."""
        for each in self._retired:
            if each.server.directory.name == version and not each.server.ended:
                self._retired.remove(each)
                self._servers[version] = each.server
                return True
        return False

    def _started(self, directory: Path, alias: str) -> ReleaseServer:
        version = directory.name
        self._say(f"{alias}: release {version} is verified and starts in {self._settings.program.kind}")
        server = ReleaseServer.start(self._lake, directory, self._settings, self._meanwhile, self._say)
        if not self._settings.smoke:
            return server
        try:
            found = server.smoke(self._lake, self._settings, self._meanwhile)
            if problems := failed(found):
                ended = "its server ended while it was tried" if server.ended else "; ".join(problems)
                raise ServeError(f"release {version} did not pass the smoke set: {ended} (log: {server.log})")
        except BaseException:
            server.close()
            raise
        self._say(f"{alias}: release {version} passed {sum(finding.passed is True for finding in found)} checks"
                  + "".join(f"; {finding.name} not checked: {finding.said}" for finding in found if finding.passed is None))
        return server

    def _route(self) -> None:
        """Lets the front send new requests to the servers of the slots, and retires the others."""
        answering = [slot for slot in self._slots if slot.serving in self._servers]
        taken = sum(slot.share for slot in answering[1:])
        self._front.switch([Route(self._servers[slot.serving].backend, 1 - taken if place == 0 else slot.share)
                            for place, slot in enumerate(answering)])
        used = {slot.serving for slot in answering}
        for version in [version for version in self._servers if version not in used]:
            self._retired.append(_Retired(self._servers.pop(version), time.monotonic() + self._drain_s))

    def _meanwhile(self) -> None:
        """What goes on while a server starts."""
        self._stop_idle()

    def _stop_idle(self) -> None:
        """Stops retired servers that have answered everything, or whose time is over."""
        for each in list(self._retired):
            left = each.server.backend.in_flight
            if left and time.monotonic() < each.until:
                continue
            self._retired.remove(each)
            self._close(each.server)
            lost = f", {left} requests that took more than {self._drain_s:g} s were cut off" if left else ""
            self._say(f"release {each.server.directory.name} is stopped{lost}")

    def _notice_ended(self) -> None:
        """Forgets servers that ended by themselves, so that they are started again after a pause."""
        for server in self.ended():
            version = server.directory.name
            if time.monotonic() - self._began[version] > STEADY_S:
                self._pauses.pop(version, None)
            self._pauses[version] = paused(self._pauses.get(version))
            del self._servers[version]
            self._close(server)
            for slot in self._slots:
                if slot.serving == version:
                    slot.serving = None
            self._route()
            self._say(f"the server of release {version} ended by itself and is started again (log: {server.log})")

    def _close(self, server: ReleaseServer) -> None:
        """Stops a server, after its last window was read."""
        if self._scraper is not None:
            self._scraper.ends(server.backend.url, gone=server.ended)
        server.close()

    def _tell_once(self, about: str, sentence: str) -> None:
        if sentence != self._told.get(about):
            self._told[about] = sentence
            self._say(sentence)


def paused(before: tuple[float, float] | None) -> tuple[float, float]:
    """When something may be tried again (time.monotonic), and the pause after that; twice as long each time."""
    pause_s = FIRST_PAUSE_S if before is None else before[1]
    return time.monotonic() + pause_s, min(2 * pause_s, LONGEST_PAUSE_S)

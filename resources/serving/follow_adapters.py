"""Serves several workloads' releases of form adapter from one vLLM server on their base, and follows the alias of each.

    following = FollowingAdapters(lake, ["tutor", "support"], front, settings, "champion", say)
    following.bring_up()         # raises ServeError if one of them cannot be served
    while True: following.look(); sleep(2)
    following.close()

When an alias names another release, its adapter is loaded beside the one that answers, tried, and the front sends new requests
for this workload to it; the old one is unloaded when its last request is answered. No server starts for that. A release on
another base, or with another tokenizer, gets a server of its own beside the first, and a server that no workload uses any more
is stopped. What cannot be served is refused as in follow.py: what served before goes on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from model_ops.evaluation.smoke.smoke_set import failed
from model_ops.serving.drafting import NO_DRAFTING, Drafting
from resources.front.front import Front
from resources.front.routes import Route
from resources.lake import Lake
from resources.releasing.endpoints import Endpoint
from resources.releasing.release import Release, ReleaseError, read_release
from resources.serving.adapter_server import AdapterServer, LoadedAdapter
from resources.serving.follow import NOT_NOW, STEADY_S, Say, paused
from resources.serving.programs import ServeError
from resources.serving.release_server import ServeSettings, verified_release
from resources.serving.shared_base import SharedBase

ALIAS = "alias"
"""What was told about a workload's alias, and not about one of its releases."""


@dataclass
class _Slot:
    """A workload. serving: what answers for it. last: version that answered last; None if none ever did. refused: version that
    is not tried again until the alias moves."""

    workload: str
    serving: LoadedAdapter | None = None
    last: str | None = None
    refused: str | None = None


@dataclass
class _Retired:
    """An adapter that takes no new request. until: when it is unloaded in any case (time.monotonic)."""

    loaded: LoadedAdapter
    server: AdapterServer
    until: float


class FollowingAdapters:
    """Adapters of several workloads behind a front. drain_s: seconds that a replaced adapter has for its requests. say: is told
    what happens, one sentence each."""

    def __init__(self, lake: Lake, workloads: Sequence[str], front: Front, settings: ServeSettings, alias: str, say: Say,
                 drain_s: float = 600.0):
        self._lake, self._front, self._settings, self._alias = lake, front, settings, alias
        self._say, self._drain_s = say, drain_s
        self._slots = [_Slot(workload) for workload in workloads]
        self._servers: list[AdapterServer] = []
        self._retired: list[_Retired] = []
        self._began: dict[int, float] = {}
        self._pauses: dict[tuple[str, str], tuple[float, float]] = {}
        self._told: dict[tuple[str, str], str] = {}

    def bring_up(self) -> None:
        """Starts the server and loads what the alias of each workload names. Raises ServeError if one of them names nothing or
        cannot be served."""
        for slot in self._slots:
            named = Endpoint(self._lake, slot.workload).read().all()
            if (version := named.get(self._alias)) is None:
                raise ServeError(f"{slot.workload} has no release under the alias {self._alias}; there are: "
                                 f"{', '.join(named) or 'none'}. Approve one: millrace approve VERSION")
            self._serve(slot, version)

    def look(self) -> None:
        """Compares what serves with what the aliases name, and does the next step. Blocks while an adapter is tried."""
        self._notice_ended()
        self._unload_idle()
        for slot in self._slots:
            try:
                version = Endpoint(self._lake, slot.workload).read().all().get(self._alias)
            except NOT_NOW as error:
                self._tell_once(slot.workload, ALIAS,
                                f"the aliases of {slot.workload} cannot be read, so what serves goes on: {error}")
                continue
            if version is None:
                self._tell_once(slot.workload, ALIAS,
                                f"{slot.workload} has no release under the alias {self._alias}: what serves goes on")
                continue
            self._told.pop((slot.workload, ALIAS), None)
            self._follow(slot, version)

    def ended(self) -> list[AdapterServer]:
        """Servers that have ended by themselves."""
        return [server for server in self._servers if server.ended]

    def close(self) -> None:
        """Stops all servers. The front is drained first, by whoever opened it."""
        for server in self._servers:
            server.close()
        self._servers, self._retired = [], []

    def _follow(self, slot: _Slot, version: str) -> None:
        if version != slot.refused:
            slot.refused = None
        serving = slot.serving.version if slot.serving else None
        if version == slot.refused and serving is None and slot.last is not None:
            version = slot.last  # it ended the server, whose other adapters come back without it
        waits_until = self._pauses.get((slot.workload, version), (0.0, 0.0))[0]
        if version in (serving, slot.refused) or time.monotonic() < waits_until:
            return
        waiting = [each for each in self._retired if each.loaded.workload == slot.workload]
        if waiting and not any(each.loaded.version == version for each in waiting):
            return  # two adapters of a workload are loaded at most
        try:
            self._serve(slot, version)
        except (ServeError, *NOT_NOW) as error:
            if isinstance(error, ServeError) and serving is not None:
                slot.refused = version
                self._say(f"{slot.workload}: {error}; release {serving} goes on, and release {version} is not tried again "
                          "until the alias moves")
                return
            self._pauses[slot.workload, version] = paused(self._pauses.get((slot.workload, version)))
            self._tell_once(slot.workload, version,
                            f"{slot.workload}: release {version} cannot be served now, and is tried again: {error}")
        else:
            self._told.pop((slot.workload, version), None)

    def _serve(self, slot: _Slot, version: str) -> None:
        """Verifies the release, loads and tries it unless it is loaded, and switches to it. Raises ServeError."""
        directory = verified_release(self._lake, slot.workload, version, self._alias)
        loaded = next((each.loaded for each in self._retired
                       if (each.loaded.workload, each.loaded.version) == (slot.workload, version)), None)
        if loaded is not None:  # a rollback while the old adapter still answers
            self._retired = [each for each in self._retired if each.loaded is not loaded]
        else:
            server = self._server_for(slot, directory)
            try:
                loaded = self._tried(server, server.load(directory))
            except BaseException:
                self._stop_unused()
                raise
        before, slot.serving, slot.last = slot.serving, loaded, version
        self._route()
        if before is not None:
            self._retired.append(_Retired(before, self._of(before), time.monotonic() + self._drain_s))
        self._say(f"{slot.workload}: release {version} answers on {self._front.url} (adapter on base "
                  f"{loaded.release.base.digest[:12]})")

    def _server_for(self, slot: _Slot, directory: Path) -> AdapterServer:
        """The server on a release's base, started if there is none. Raises ServeError for a workload's first release on another
        base than the others': memory is planned for one base."""
        release = read_release(directory)
        shared = SharedBase.of(directory, release)
        for server in self._servers:
            if not server.ended and not server.shared.differences(shared):
                if slot.last is not None and release.served_drafting != server.drafting:
                    self._say(f"release {directory.name} of {slot.workload} was measured with another drafting than that of "
                              f"the server that serves it: start millrace serve again to choose anew")
                return server
        others = [server for server in self._servers if not server.ended]
        if others and slot.last is None:
            why = "; ".join(others[0].shared.differences(shared))
            raise ServeError(f"{slot.workload} cannot be served beside the other workloads: {why}. Serve it alone: millrace "
                             f"serve {slot.workload}")
        releases = [release, *self._releases_on(shared)]
        drafting = _common_drafting(releases)
        if any(release.served_drafting != drafting for release in releases):
            self._say("the releases draft differently and share one server, so it drafts nothing")
        self._say(f"a server on base {shared.base[:12]} starts in vllm")
        server = AdapterServer.start(
            self._lake, shared, self._settings, max(release.adapter.rank for release in releases),
            len(self._slots) + 1, drafting, self._unload_idle, self._say)
        self._servers.append(server)
        self._began[id(server)] = time.monotonic()
        return server

    def _releases_on(self, shared: SharedBase) -> list[Release]:
        """What the aliases name now on this base."""
        found = []
        for slot in self._slots:
            try:
                version = Endpoint(self._lake, slot.workload).read().all().get(self._alias)
                directory = self._lake.artefacts("release") / slot.workload / (version or "")
                release = read_release(directory)
                if not shared.differences(SharedBase.of(directory, release)):
                    found.append(release)
            except (ServeError, ReleaseError, *NOT_NOW):
                continue  # it is refused, in words, when it is to be served
        return found

    def _tried(self, server: AdapterServer, loaded: LoadedAdapter) -> LoadedAdapter:
        """Raises ServeError for a release that fails its smoke set, which is unloaded again."""
        if not self._settings.smoke:
            return loaded
        try:
            found = server.smoke(self._lake, loaded, self._settings, self._unload_idle)
            if problems := failed(found):
                ended = "its server ended while it was tried" if server.ended else "; ".join(problems)
                raise ServeError(f"release {loaded.version} did not pass the smoke set: {ended} (log: {server.log})")
        except BaseException:
            if not server.ended:
                server.unload(loaded)
            raise
        passed = sum(finding.passed is True for finding in found)
        self._say(f"{loaded.workload}: release {loaded.version} passed {passed} checks"
                  + "".join(f"; {finding.name} not checked: {finding.said}" for finding in found if finding.passed is None))
        return loaded

    def _route(self) -> None:
        self._front.switch([Route(slot.serving.backend) for slot in self._slots if slot.serving is not None])

    def _unload_idle(self) -> None:
        """Unloads replaced adapters that have answered everything, or whose time is over, and stops servers without any."""
        for each in list(self._retired):
            left = each.loaded.backend.in_flight
            if left and time.monotonic() < each.until:
                continue
            name = f"release {each.loaded.version} of {each.loaded.workload}"
            try:
                each.server.unload(each.loaded)
            except ServeError as error:  # it is still there, and the next look tries again
                self._tell_once(each.loaded.workload, each.loaded.version, str(error))
                continue
            self._retired.remove(each)
            late = f"; {left} of its requests took more than {self._drain_s:g} s" if left else ""
            self._say(f"{name} is unloaded{late}")
            self._stop_unused()

    def _stop_unused(self) -> None:
        for server in [server for server in self._servers if not server.loaded]:
            self._servers.remove(server)
            server.close()
            self._say(f"the server on base {server.shared.base[:12]} is stopped: no workload uses it")

    def _notice_ended(self) -> None:
        """Forgets servers that ended by themselves, so that they are started again after a pause."""
        for server in self.ended():
            steady = time.monotonic() - self._began.pop(id(server)) > STEADY_S
            self._servers.remove(server)
            server.close()
            self._retired = [each for each in self._retired if each.server is not server]
            for slot in self._slots:
                if slot.serving is not None and slot.serving in server.loaded:
                    key = (slot.workload, slot.serving.version)
                    self._pauses[key] = paused(None if steady else self._pauses.get(key))
                    slot.serving = None
            self._route()
            self._say(f"the server on base {server.shared.base[:12]} ended by itself and is started again (log: {server.log})")

    def _of(self, loaded: LoadedAdapter) -> AdapterServer:
        return next(server for server in self._servers if loaded in server.loaded)

    def _tell_once(self, workload: str, about: str, sentence: str) -> None:
        if sentence != self._told.get((workload, about)):
            self._told[workload, about] = sentence
            self._say(sentence)


def _common_drafting(releases: Sequence[Release]) -> Drafting:
    """What all releases draft with; nothing where they differ, since a server drafts in one way."""
    first = releases[0].served_drafting
    return first if all(release.served_drafting == first for release in releases) else NO_DRAFTING

"""Serves what aliases of endpoints name, and follows them: the new release is started beside the old one, tried, switched to,
and the old one is stopped when it has answered its last request.

    slots = [Slot("math-tutor", "champion")]
    follower = Follower(lake, ServerHost(lake, settings, say), front, slots, say)
    follower.bring_up()          # raises ServeError if the champion cannot be served
    while True: follower.look(); sleep(2)
    follower.close()

A release that cannot be started or fails its smoke set is refused: what served before goes on, the reason is told, and the
release is not tried again until its alias names another one. Where nothing served before, it is tried again, and so is a server
that ends by itself, after pauses that grow. At most one release more than needed is loaded for each workload at a time.

Where releases run is the host's business: each in a server of its own (ServerHost in endpoint_server.py), or several adapters
in one server on their base (AdapterHost, there)."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from model_ops.evaluation import failures
from model_ops.machine import Backoff
from resources.endpoints import Endpoint, EndpointError, EndpointLogError
from resources.gateway import Front, Route
from resources.lake import LakeLayout
from resources.serving.adapter_server import AdapterServer, LoadedAdapter
from resources.serving.programs import ServeError
from resources.serving.release_server import ReleaseServer, ServeSettings, verified_release
from resources.signing import KeyProblemError
from stores.lake_error import LakeError
from stores.s3 import S3Error

STEADY_S = 600.0
"""After a server that ran so long, pauses are short again."""
NOT_NOW = (EndpointError, EndpointLogError, KeyProblemError, LakeError, S3Error, OSError)
"""What a person or time mends, so that the same release may be tried again."""

Say = Callable[[str], None]
Key = tuple[str, str]
"""Workload and version of a release."""


@dataclass
class Slot:
    """An alias of a workload that takes a share of its sessions; a workload's first slot takes what the others leave."""

    workload: str
    alias: str
    share: float = 1.0
    serving: str | None = None
    """Version of the release that answers for it."""
    last: str | None = None
    """Version that answered last; None if none ever did."""
    refused: str | None = None
    """Version that is not tried again until the alias moves."""


Loaded = TypeVar("Loaded", ReleaseServer, LoadedAdapter)
LoadedRelease = ReleaseServer | LoadedAdapter
"""A release that can answer."""
AnyServer = ReleaseServer | AdapterServer


class ReleaseHost(Protocol[Loaded]):
    """Where releases run."""

    settings: ServeSettings

    def name(self, slot: Slot) -> str:
        """How sentences call the slot."""

    def start(self, slot: Slot, directory: Path, meanwhile: Callable[[], None]) -> Loaded:
        """Loads a verified release, which takes no traffic yet. meanwhile: called while that lasts. Raises ServeError."""

    def begin(self, loaded: Loaded) -> None:
        """It takes traffic from now on."""

    def discard(self, loaded: Loaded) -> None:
        """Takes one away that did not pass and never took traffic."""

    def stop(self, loaded: Loaded, late: int, drain_s: float) -> None:
        """Takes one away that is drained, but for `late` requests, and tells it. Raises ServeError while it is still there."""

    def close_ended(self, server: Any) -> None:
        """Cleans up after a server that ended by itself."""

    def close(self) -> None:
        """Ends all servers."""


@dataclass
class _Retired:
    """A release that takes no new request. until: when it is stopped in any case (time.monotonic)."""

    loaded: LoadedRelease
    until: float


class Follower:
    """What answers for the slots behind a front. drain_s: seconds that a replaced release has for its requests. say: called
    with one sentence for each event."""

    def __init__(
        self, lake: LakeLayout, host: ReleaseHost[Any], front: Front, slots: Sequence[Slot], say: Say, drain_s: float = 600.0
    ):
        self.host = host
        self.loaded: dict[Key, LoadedRelease] = {}
        """Releases in use."""
        self._lake, self._front, self._say, self._drain_s = lake, front, say, drain_s
        self._slots: dict[str, list[Slot]] = {}
        for slot in slots:
            self._slots.setdefault(slot.workload, []).append(slot)
        self._retired: list[_Retired] = []
        self._backoffs: dict[Key, Backoff] = {}
        """Pauses between starts of a release."""
        self._reported: dict[Key, str] = {}
        """What was told last about each release, and, under the version "", about a workload's aliases."""

    def bring_up(self) -> None:
        """Starts what the first slot of each workload names, and then its others, which may be refused. Raises ServeError if
        the first alias names nothing or its release cannot be served."""
        for workload, (first, *others) in self._slots.items():
            named = Endpoint(self._lake, workload).read().all()
            if (version := named.get(first.alias)) is None:
                raise ServeError(
                    f"{workload} has no release under the alias {first.alias}; there are: "
                    f"{', '.join(named) or 'none'}. Approve one: millrace approve VERSION"
                )
            self._serve(first, version)
            for slot in others:
                self._follow(slot, named.get(slot.alias))

    def look(self) -> None:
        """Compares what serves with what the aliases name, and does the next step. Blocks while a release starts."""
        self._notice_ended()
        self._stop_idle()
        for workload, slots in self._slots.items():
            try:
                named = Endpoint(self._lake, workload).read().all()
            except NOT_NOW as error:
                self._tell_once((workload, ""), f"the aliases of {workload} cannot be read, so what serves goes on: {error}")
                continue
            if (alias := slots[0].alias) not in named:
                self._tell_once((workload, ""), f"{workload} has no release under the alias {alias}: what serves goes on")
            else:
                self._reported.pop((workload, ""), None)
            for slot in slots:
                self._follow(slot, named.get(slot.alias))

    def ended(self) -> list[AnyServer]:
        """Servers in use that have ended by themselves."""
        return [server for server in dict.fromkeys(each.server for each in self.loaded.values()) if server.ended]

    def close(self) -> None:
        """Stops all servers. The front is drained first, by whoever opened it."""
        self.host.close()
        self.loaded, self._retired = {}, []

    def _follow(self, slot: Slot, version: str | None) -> None:
        if version is None:
            if slot is not self._slots[slot.workload][0] and slot.serving is not None:
                self._say(f"no release is named {slot.alias} any more")
                slot.serving = None
                self._route()
            return
        if version != slot.refused:
            slot.refused = None
        elif slot.serving is None and slot.last is not None:
            version = slot.last  # the refused one ended the server of what served before, which comes back
        if version in (slot.serving, slot.refused) or not self._backoff(slot.workload, version).is_over:
            return
        waiting = [_key(each.loaded) for each in self._retired if each.loaded.release.workload == slot.workload]
        if waiting and (slot.workload, version) not in waiting:  # memory for one release more than needed, not for two
            return
        try:
            self._serve(slot, version)
        except (ServeError, *NOT_NOW) as error:
            self._route()  # a release that was taken back into use is not needed
            name = self.host.name(slot)
            if isinstance(error, ServeError) and slot.serving is not None:
                slot.refused = version
                self._say(
                    f"{name}: {error}; release {slot.serving} goes on, and release {version} is not tried again until "
                    "the alias moves"
                )
                return
            self._backoff(slot.workload, version).begin()
            said = f"{name}: release {version} cannot be served now, and is tried again: {error}"
            self._tell_once((slot.workload, version), said)
        else:
            self._reported.pop((slot.workload, version), None)

    def _serve(self, slot: Slot, version: str) -> None:
        """Verifies the release, starts and tries it unless it is loaded, and switches to it. Raises ServeError."""
        directory = verified_release(self._lake, slot.workload, version, slot.alias)
        key = slot.workload, version
        if key not in self.loaded:
            self.loaded[key] = self._revived(key) or self._started(slot, directory)
        slot.serving = slot.last = version
        self._route()
        share = "" if slot.share == 1 else f" to {slot.share:z.0%} of the sessions"
        answers = f"release {version} answers{share} on {self._front.url} ({self.loaded[key].described})"
        self._say(f"{self.host.name(slot)}: {answers}")

    def _revived(self, key: Key) -> LoadedRelease | None:
        """The release itself if it still answers its last requests: a rollback then takes no time."""
        for each in self._retired:
            if _key(each.loaded) == key and not each.loaded.server.ended:
                self._retired.remove(each)
                return each.loaded
        return None

    def _started(self, slot: Slot, directory: Path) -> LoadedRelease:
        loaded = self.host.start(slot, directory, self._stop_idle)
        if self.host.settings.smoke:
            try:
                findings = loaded.smoke(self._lake, self.host.settings, self._stop_idle)
                if problems := failures(findings):
                    server = loaded.server
                    ended = "its server ended while it was tried" if server.ended else "; ".join(problems)
                    raise ServeError(f"release {directory.name} did not pass the smoke set: {ended} (log: {server.log})")
            except BaseException:
                self.host.discard(loaded)
                raise
            passed = sum(finding.passed is True for finding in findings)
            self._say(
                f"{self.host.name(slot)}: release {directory.name} passed {passed} checks"
                + "".join(f"; {finding.name} not checked: {finding.said}" for finding in findings if finding.passed is None)
            )
        self.host.begin(loaded)
        return loaded

    def _route(self) -> None:
        """Lets the front send new requests to the releases of the slots, and retires the others."""
        routes, used = [], set()
        for workload, slots in self._slots.items():
            answering = [(slot, key) for slot in slots if slot.serving and (key := (workload, slot.serving)) in self.loaded]
            taken = sum(slot.share for slot, _ in answering[1:])
            for place, (slot, key) in enumerate(answering):
                routes.append(Route(self.loaded[key].backend, slot.share if place else 1 - taken))
            used |= {key for _, key in answering}
        self._front.switch(routes)
        for key in [key for key in self.loaded if key not in used]:
            self._retired.append(_Retired(self.loaded.pop(key), time.monotonic() + self._drain_s))

    def _stop_idle(self) -> None:
        """Stops retired releases that have answered everything, or whose time is over. Goes on while another one starts."""
        for each in list(self._retired):
            left = each.loaded.backend.in_flight
            if left and time.monotonic() < each.until:
                continue
            try:
                self.host.stop(each.loaded, left, self._drain_s)
            except ServeError as error:  # it is still there, and the next look tries again
                self._tell_once(_key(each.loaded), str(error))
                continue
            self._retired.remove(each)

    def _notice_ended(self) -> None:
        """Forgets servers that ended by themselves, so that they are started again after a pause."""
        for server in self.ended():
            self._retired = [each for each in self._retired if each.loaded.server is not server]
            for key in [key for key, loaded in self.loaded.items() if loaded.server is server]:
                del self.loaded[key]
                if time.monotonic() - server.began_s > STEADY_S:
                    self._backoff(*key).reset()
                self._backoff(*key).begin()
                for slot in self._slots[key[0]]:
                    if slot.serving == key[1]:
                        slot.serving = None
            self._route()
            self.host.close_ended(server)
            self._say(f"the server of {server.what} ended by itself and is started again (log: {server.log})")

    def _backoff(self, workload: str, version: str) -> Backoff:
        return self._backoffs.setdefault((workload, version), Backoff())

    def _tell_once(self, about: Key, sentence: str) -> None:
        if sentence != self._reported.get(about):
            self._reported[about] = sentence
            self._say(sentence)


def _key(loaded: LoadedRelease) -> Key:
    return loaded.release.workload, loaded.directory.name

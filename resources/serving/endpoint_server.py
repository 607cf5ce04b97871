"""Serves an alias of an endpoint until it is stopped: `millrace serve`.

A front takes the requests (gateway/front.py), so that releases can be switched behind one address. SIGINT and SIGTERM (as
KeyboardInterrupt) take no new connection, wait for requests in flight, and stop the servers."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_ops.drafting import NO_DRAFTING
from resources.digests import unkeyed_sentence
from resources.endpoints import Endpoint, workloads_with_endpoints
from resources.gateway import Capture, CaptureSettings, Front, FrontError
from resources.lake import LakeLayout
from resources.monitoring import EVERY_S, ScrapeError, Scraper
from resources.releases import Release, ReleaseError, read_release
from resources.serving.adapter_server import AdapterServer, LoadedAdapter, SharedBase
from resources.serving.follow import NOT_NOW, Follower, ReleaseHost, Say, Slot
from resources.serving.programs import ServeError
from resources.serving.release_server import ReleaseServer, ServeSettings


class AdapterHost:
    """slots: all that are followed; the server is planned for them together."""

    def __init__(self, lake: LakeLayout, settings: ServeSettings, slots: Sequence[Slot], say: Say):
        self.settings = settings
        self.servers: list[AdapterServer] = []
        self._lake, self._slots, self._say = lake, slots, say

    def name(self, slot: Slot) -> str:
        return slot.workload

    def start(self, slot: Slot, directory: Path, meanwhile: Callable[[], None]) -> LoadedAdapter:
        server = self._server_for(slot, directory, meanwhile)
        try:
            return server.load(directory)
        except BaseException:
            self._stop_unused()
            raise

    def begin(self, loaded: LoadedAdapter) -> None:
        """Nothing to do: metrics of the server are those of all its adapters, so none are kept."""

    def discard(self, loaded: LoadedAdapter) -> None:
        try:
            self._unload(loaded)
        finally:
            self._stop_unused()

    def stop(self, loaded: LoadedAdapter, late: int, drain_s: float) -> None:
        self._unload(loaded)
        more = f"; {late} of its requests took more than {drain_s:g} s" if late else ""
        self._say(f"release {loaded.version} of {loaded.workload} is unloaded{more}")
        self._stop_unused()

    def close_ended(self, server: AdapterServer) -> None:
        self.servers.remove(server)
        server.close()

    def close(self) -> None:
        for server in self.servers:
            server.close()
        self.servers = []

    def _unload(self, loaded: LoadedAdapter) -> None:
        if loaded.server.ended:
            loaded.server.loaded.remove(loaded)
        else:
            loaded.server.unload(loaded)

    def _server_for(self, slot: Slot, directory: Path, meanwhile: Callable[[], None]) -> AdapterServer:
        """The server on a release's base, started if there is none. Raises ServeError for a workload's first release on another
        base than the others': memory is planned for one base."""
        release = read_release(directory)
        shared = SharedBase.of(directory, release)
        for server in self.servers:
            if not server.ended and not server.shared.differences(shared):
                if slot.last is not None and release.served_drafting != server.drafting:
                    self._say(
                        f"release {directory.name} of {slot.workload} was measured with another drafting than that of "
                        f"the server that serves it: start millrace serve again to choose anew"
                    )
                return server
        others = [server for server in self.servers if not server.ended]
        if others and slot.last is None:
            why = "; ".join(others[0].shared.differences(shared))
            raise ServeError(
                f"{slot.workload} cannot be served beside the other workloads: {why}. Serve it alone: millrace "
                f"serve {slot.workload}"
            )
        releases = [release, *self._releases_on(shared)]
        drafting = releases[0].served_drafting  # a server drafts in one way
        if any(release.served_drafting != drafting for release in releases):
            drafting = NO_DRAFTING
        if any(release.served_drafting != drafting for release in releases):
            self._say("the releases draft differently and share one server, so it drafts nothing")
        self._say(f"a server on base {shared.base[:12]} starts in vllm")
        rank, most = max(each.adapter.rank for each in releases if each.adapter is not None), len(self._slots) + 1
        server = AdapterServer.start(self._lake, shared, self.settings, rank, most, drafting, meanwhile, self._say)
        self.servers.append(server)
        return server

    def _releases_on(self, shared: SharedBase) -> list[Release]:
        """What the aliases name now on this base."""
        directories = []
        for slot in self._slots:
            try:
                version = Endpoint(self._lake, slot.workload).read().all().get(slot.alias)
                directory = self._lake.artefacts("release") / slot.workload / (version or "")
                release = read_release(directory)
                if not shared.differences(SharedBase.of(directory, release)):
                    directories.append(release)
            except (ServeError, ReleaseError, *NOT_NOW):
                continue  # it is refused, in words, when it is to be served
        return directories

    def _stop_unused(self) -> None:
        for server in [server for server in self.servers if not server.loaded]:
            self.servers.remove(server)
            server.close()
            self._say(f"the server on base {server.shared.base[:12]} is stopped: no workload uses it")


SWITCH_INTERVAL_S = 0.0005
"""The front's thread waits at most so long for this process's other threads (Python's default is ten times as long)."""


@dataclass(frozen=True)
class TrafficSettings:
    """host, port: where clients find the front. alias: whose release answers. canary: a further alias, and its share of the
    sessions. drain_s: seconds that requests in flight have when their server is replaced or this process is stopped. capture:
    how the traffic is written (gateway/capture.py). wait_s: seconds that a request waits while no server takes it. scrape_s:
    length of the windows of serving_metrics; 0: none are kept. beside: further workloads, whose adapters the same server
    answers for: its metrics are those of all of them, so none are kept."""

    host: str = "127.0.0.1"
    port: int = 8000
    alias: str = "champion"
    canary: str | None = None
    share: float = 0.1
    drain_s: float = 600.0
    capture: CaptureSettings | None = None
    wait_s: float = 300.0
    scrape_s: float = EVERY_S
    beside: tuple[str, ...] = ()

    def slots_of(self, workload: str) -> list[Slot]:
        """What is followed, of this workload and of those beside it."""
        further = [Slot(workload, self.canary, self.share)] if self.canary else []
        return [Slot(workload, self.alias), *further, *(Slot(other, self.alias) for other in self.beside)]


def require_servable(lake: LakeLayout, workload: str, traffic: TrafficSettings) -> None:
    """Raises ServeError for a workload that the lake has no endpoint of, and for what does not go together."""
    workloads, known = (workload, *traffic.beside), workloads_with_endpoints(lake)
    for named in workloads:
        if named not in known:
            raise ServeError(f"{lake.place} has no endpoint of {named!r}; there are: {', '.join(known) or 'none yet'}")
        if workloads.count(named) > 1:
            raise ServeError(f"{named} is named twice: name each workload once")
    if traffic.beside and traffic.canary is not None:
        raise ServeError("--canary goes with one workload: leave it out, or serve the workloads one by one")
    if traffic.canary == traffic.alias:
        raise ServeError(f"--canary {traffic.canary} is the alias that is served anyway: name another one")


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


def serve(
    lake: LakeLayout,
    workload: str,
    traffic: TrafficSettings,
    settings: ServeSettings,
    say: Say,
    watch: bool = False,
    every_s: float = 2.0,
) -> None:
    """Returns when it is interrupted. watch: follow the aliases, and start servers again that end; otherwise such an end
    raises. every_s: how often the aliases are read. Raises ServeError if the port is taken, and if the release cannot be
    served; with `watch`, that is said, and the alias's next release is waited for."""
    require_servable(lake, workload, traffic)
    slots = traffic.slots_of(workload)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with ExitStack() as stack:
        capture = stack.enter_context(Capture(traffic.capture, say)) if traffic.capture is not None else None
        if capture is not None and (unkeyed := unkeyed_sentence()):
            say(unkeyed)
        watched = (capture.recorder, capture.answers) if capture else (None, None)
        front = Front(traffic.host, traffic.port, traffic.drain_s, *watched, wait_s=traffic.wait_s)
        if traffic.beside or (traffic.canary is None and _is_adapter(lake, workload, traffic.alias)):
            if traffic.scrape_s:
                say("metrics of the servers are not kept: an adapter's server reports those of all its releases together")
            host: ReleaseHost[Any] = AdapterHost(lake, settings, slots, say)
        else:
            scraper = stack.enter_context(scraping(lake, workload, traffic, say)) if traffic.scrape_s else None
            host = ServerHost(lake, settings, say, scraper)
        follower = Follower(lake, host, front, slots, say, traffic.drain_s)
        stack.callback(follower.close)  # after the front was drained
        try:
            stack.enter_context(front)
        except FrontError as error:
            raise ServeError(str(error)) from error
        try:
            if not watch:
                follower.bring_up()
            while True:
                if watch:
                    follower.look()
                elif ended := follower.ended():
                    raise ServeError(f"the server of {ended[0].what} ended by itself (log: {ended[0].log})")
                time.sleep(every_s)
        except KeyboardInterrupt:
            if waiting := sum(route.backend.in_flight for route in front.routes):
                say(
                    f"stops when {waiting} requests in flight are answered, after {traffic.drain_s:g} s at most; Ctrl-C again "
                    "stops at once"
                )


@contextmanager
def scraping(lake: LakeLayout, workload: str, traffic: TrafficSettings, say: Say) -> Iterator[Scraper | None]:
    """What reads the metrics of the block's servers, in a thread of its own. None, and told, where the lake cannot be written:
    serving goes on without them."""
    endpoint = f"http://{socket.gethostname()}:{traffic.port}"
    with ExitStack() as stack:
        try:
            scraper = stack.enter_context(Scraper(lake, workload, endpoint, traffic.scrape_s, say))
        except (ScrapeError, OSError) as error:
            say(f"metrics of the servers are not kept: {error}")
            yield None
            return
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(scraper.next_s):
                scraper.tick()

        thread = threading.Thread(target=look, name="scraping", daemon=True)
        thread.start()
        try:
            yield scraper
        finally:
            ended.set()
            thread.join()


def _is_adapter(lake: LakeLayout, workload: str, alias: str) -> bool:
    """Whether the alias names a release of form adapter: later ones are then loaded into the same server."""
    try:
        version = Endpoint(lake, workload).read().all().get(alias)
        lake.mirror.pull()
        return version is not None and read_release(lake.artefacts("release") / workload / version).form == "adapter"
    except (ReleaseError, *NOT_NOW):
        return False  # the reason is told when it is to be served

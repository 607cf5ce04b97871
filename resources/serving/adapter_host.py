"""Runs releases of form adapter in one vLLM server on their base, for follow.py.

An adapter is loaded beside the one that answers, and the old one is unloaded when its last request is answered: no server
starts for that. A release on another base, or with another tokenizer, gets a server of its own beside the first, and a server
that no workload uses any more is stopped.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from model_ops.drafting import NO_DRAFTING, Drafting
from resources.endpoints import Endpoint
from resources.lake import LakeLayout
from resources.releases import Release, ReleaseError, read_release
from resources.serving.adapter_server import AdapterServer, LoadedAdapter
from resources.serving.follow import NOT_NOW, Say, Slot
from resources.serving.programs import ServeError
from resources.serving.release_server import ServeSettings
from resources.serving.shared_base import SharedBase


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
        drafting = _common_drafting(releases)
        if any(release.served_drafting != drafting for release in releases):
            self._say("the releases draft differently and share one server, so it drafts nothing")
        self._say(f"a server on base {shared.base[:12]} starts in vllm")
        server = AdapterServer.start(
            self._lake,
            shared,
            self.settings,
            max(release.adapter.rank for release in releases if release.adapter is not None),
            len(self._slots) + 1,
            drafting,
            meanwhile,
            self._say,
        )
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


def _common_drafting(releases: Sequence[Release]) -> Drafting:
    """What all releases draft with; nothing where they differ, since a server drafts in one way."""
    first = releases[0].served_drafting
    return first if all(release.served_drafting == first for release in releases) else NO_DRAFTING

"""A release that fails its smoke set never takes traffic; one that passes does. With a host that starts nothing."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from model_ops.evaluation import SmokeResult
from resources.serving.follow import Follower, Slot
from resources.serving.programs import ServeError


class NoHost:
    """Notes what a follower does with a release."""

    def __init__(self, passed):
        self.settings = SimpleNamespace(smoke=True)
        self.calls = []
        self._passed = passed

    def name(self, slot):
        return slot.workload

    def start(self, slot, directory, meanwhile):
        server = SimpleNamespace(ended=False, log=Path("server.log"))
        return SimpleNamespace(server=server, smoke=lambda *_: [SmokeResult("stop", self._passed, "it goes on")])

    def begin(self, loaded):
        self.calls.append("begin")

    def discard(self, loaded):
        self.calls.append("discard")


@pytest.mark.parametrize("passed, calls", [(True, ["begin"]), (None, ["begin"]), (False, ["discard"])])
def test_a_release_takes_traffic_only_where_it_passes(passed, calls):
    host, slot, said = NoHost(passed), Slot("tutor", "champion"), []
    follower = Follower(None, host, None, [slot], said.append)
    if passed is False:
        with pytest.raises(ServeError, match=r"release 3f2a did not pass the smoke set: .*it goes on \(log: server\.log\)"):
            follower._started(slot, Path("3f2a"))
    else:
        follower._started(slot, Path("3f2a"))
        assert ("not checked" in said[0]) == (passed is None)
    assert host.calls == calls

"""Two machines change one endpoint of a lake in a bucket: its file never goes back to an earlier generation."""

import pytest

from resources.endpoints.endpoint_log import Actor, EndpointLogError
from resources.endpoints.endpoints import Endpoint
from resources.releases.release import ReleaseRef

BY = Actor("ann", "test", "")


def test_a_machine_that_read_a_shorter_log_does_not_write_the_file_back(machine, monkeypatch):
    a, b = machine("a"), machine("b")
    first, second, third = (ReleaseRef(release=f"release-{number}", digest="d") for number in (1, 2, 3))
    Endpoint(a, "tutor").promote(first, BY)
    with monkeypatch.context() as patched:  # a process is killed after its entry and before the file
        patched.setattr(Endpoint, "_write_file", lambda self, aliases: aliases)
        Endpoint(a, "tutor").promote(second, BY)
    slow, read = Endpoint(a, "tutor"), Endpoint._repaired

    def overtaken(self):
        found = read(self)
        if self is slow:
            Endpoint(b, "tutor").promote(third, BY)
        return found

    monkeypatch.setattr(Endpoint, "_repaired", overtaken)
    with pytest.raises(EndpointLogError, match="another machine changed the endpoint meanwhile"):
        slow.promote(ReleaseRef(release="release-4", digest="d"), BY)
    c = machine("c")
    served = Endpoint(c, "tutor").read()
    assert (served.champion, served.previous, served.generation) == ("release-3", "release-2", 3)
    assert Endpoint(c, "tutor").problems() == []

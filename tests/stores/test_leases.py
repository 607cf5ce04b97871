"""Leases: whoever lost one does not write."""

from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import pytest
from made_versions import made
from test_mirror import quarantined

from resources.artefacts.registry import Registry
from resources.drifting.chosen_window import ChosenWindow, KnownVocabulary, ReferenceWindow
from resources.drifting.settings import Reference
from resources.endpoints.actor import Actor
from resources.endpoints.endpoint_log import EndpointLogError
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeError
from resources.lake.lake_use import alone, at_work
from resources.lake.tables import Tables
from resources.releases.release import ReleaseRef
from stores.mirror import leases
from stores.mirror.layout import SMALL_BYTES

LOST = "could not renew its lease on s3://.* for 75 s .*nothing more is written to it; run the command again"


def test_who_could_not_renew_a_lease_writes_nothing_more(machine, server, bucket, monkeypatch):
    a = machine("a")
    made(a, config={"n": 0})
    later = {"s": 0.0}
    clock = leases._seconds
    monkeypatch.setattr(leases, "_seconds", lambda: clock() + later["s"])
    with pytest.raises(LakeError, match=LOST), alone(a, "forget"):
        before = server.names(bucket, "lakes/tutor")
        later["s"] = 80.0
        with pytest.raises(LakeError, match=LOST):
            made(a, config={"n": 1})
        with pytest.raises(LakeError, match=LOST):
            Tables(a).append("quarantine", quarantined(1))
        with pytest.raises(LakeError, match=LOST):
            a.mirror.remove(a.root / "datasets")
        with pytest.raises(LakeError, match=LOST):
            a.mirror.remove_unfinished(-60)
        assert server.names(bucket, "lakes/tutor") == before
    with at_work(a):  # a new command takes a new lease, and publishes what is here
        pass
    assert Registry(machine("b"), "tutor").versions("dataset", "sft_dataset")[1].config == {"n": 1}


def test_a_lease_is_renewed_in_time_or_never(machine, server, bucket, monkeypatch):
    a, now = machine("a"), [0.0]
    monkeypatch.setattr(leases, "_seconds", lambda: now[0])
    with leases._held(a.mirror.bucket, "leases/work/1.json") as lease:
        for _ in range(3):
            now[0] += 60
            lease.renew()
            leases.require_held(a.mirror.bucket)
        now[0] += 80  # it slept: others may have worked meanwhile, and the store would still take the lease
        lease.renew()
        with pytest.raises(LakeError, match=LOST):
            leases.require_held(a.mirror.bucket)
    leases.require_held(a.mirror.bucket)
    with leases._held(a.mirror.bucket, "leases/work/2.json") as lease:
        server.put(bucket, "lakes/tutor/leases/work/2.json", b"of another process")
        lease.renew()
        assert lease.is_lost
    assert server.names(bucket, "lakes/tutor/leases") == ["lakes/tutor/leases/work/2.json"]


def test_a_lease_that_is_removed_while_another_process_looks_at_it_can_be_taken(machine, server, bucket, monkeypatch):
    a = machine("a")
    server.put(bucket, "lakes/tutor/leases/work.json", b"{}")
    monkeypatch.setattr(leases, "EXPIRE_S", -1.0)
    put = type(a.mirror.bucket).put

    def late(where, path, content, was):
        if was is not None:
            server.delete(bucket, f"lakes/tutor/{path}")
        return put(where, path, content, was)

    with monkeypatch.context() as patch, pytest.raises(leases.LeaseHeld, match="another process"):
        patch.setattr(type(a.mirror.bucket), "put", late)
        leases._Lease(a.mirror.bucket, "leases/work.json", b"x")
    assert leases._Lease(a.mirror.bucket, "leases/work.json", b"x").etag


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


FIRST = date(2026, 6, 1)


def window(start, size):
    days = tuple(start + timedelta(day) for day in range(4))
    counts = {day: np.random.default_rng(1).random((size // 16, 2)) for day in days[1:]}
    return ReferenceWindow(Reference(days[0], days[-1], days[:1], days[1:]), KnownVocabulary({}, {}), "code", "files",
        dict.fromkeys(days, 9), counts)  # fmt: skip


def test_a_window_reaches_other_machines_and_the_first_one_of_two_stays(machine):
    there, here = machine("a"), machine("b")
    one, two = (ChosenWindow(lake, "tutor", "", 4, "code") for lake in (there, here))
    first = window(FIRST, 2 * SMALL_BYTES)  # too large to be pulled with all others
    one.keep(first)
    assert two.window is None
    two.keep(window(FIRST + timedelta(7), 160))
    assert ChosenWindow(here, "tutor", "", 4, "code").window == first
    here.mirror.pull()
    read = ChosenWindow(here, "tutor", "", 4, "code").with_counts()
    assert read == first and all(np.array_equal(read.counts[day], found) for day, found in first.counts.items())
    changed = replace(first, files="other files", counts=window(FIRST, 2 * SMALL_BYTES + 160).counts)
    ChosenWindow(here, "tutor", "", 4, "code").keep(changed)
    there.mirror.pull()
    assert ChosenWindow(there, "tutor", "", 4, "code").with_counts() == changed

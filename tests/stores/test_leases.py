"""Leases: whoever lost one does not write."""

import pytest
from made_versions import made
from test_mirror import quarantined

from resources.artefacts.registry import Registry
from resources.lake.lake import LakeError
from resources.lake.lake_use import alone, at_work
from resources.lake.tables import Tables
from stores.mirror import leases

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

"""Leases: whoever lost one does not write."""

import shutil
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from made_versions import made
from test_mirror import quarantined

from resources.artefacts.registry import Registry
from resources.deciding.decisions import Decision, Decisions, decision_id
from resources.deciding.requests import RequestError, Requests, RetrainingRequest, folder_of
from resources.drifting.chosen_window import ChosenWindow, KnownVocabulary, ReferenceWindow
from resources.drifting.settings import Reference
from resources.endpoints.endpoint_log import Actor, EndpointLogError
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeError
from resources.lake.lake_use import alone, at_work
from resources.lake.tables import Tables
from resources.monitoring.alerts.outbox import Outbox
from resources.monitoring.alerts.settings import Alert
from resources.releases.release import ReleaseRef
from stores.mirror import leases
from stores.mirror.layout import SMALL_BYTES
from stores.s3 import S3Error

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
    first, second, third = (ReleaseRef(version=f"release-{number}", digest="d") for number in (1, 2, 3))
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
        slow.promote(ReleaseRef(version="release-4", digest="d"), BY)
    c = machine("c")
    served = Endpoint(c, "tutor").read()
    assert (served.champion, served.previous, served.generation) == ("release-3", "release-2", 3)
    assert Endpoint(c, "tutor").problems() == []


FIRST = date(2026, 6, 1)


def window(start, size):
    days = tuple(start + timedelta(day) for day in range(4))
    counts = {day: np.random.default_rng(1).random((size // 16, 2)) for day in days[1:]}
    return ReferenceWindow(
        Reference(days[0], days[-1], days[:1], days[1:]),
        KnownVocabulary({}, {}),
        "code",
        "files",
        dict.fromkeys(days, 9),
        counts,
    )


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


NOW = datetime(2026, 6, 5, 9, tzinfo=UTC)
WANTED = RetrainingRequest.of("tutor", Actor("ana", "test", "wrong prices"))


def claim_of(window):
    return Decision(
        "tutor", decision_id("tutor", "new_logs", "", window), NOW, "new_logs", "rows came", {}, [], "nothing", "", False
    )


def test_a_claim_whose_machine_was_killed_before_its_row_is_completed_on_another_machine(machine, monkeypatch):
    a, b, claimed = machine("a"), machine("b"), claim_of("day 1")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Tables, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            Decisions(a, "tutor").record(claimed)
    assert Decisions(b, "tutor").all() == [claimed] == Decisions(a, "tutor").all()
    assert (a.root / "deciding" / "tutor" / f"{claimed.decision_id}.json").exists()
    assert not Decisions(b, "tutor").record(claimed)


def test_a_request_of_one_machine_is_seen_and_not_kept_again_on_another(machine):
    a, b = machine("a"), machine("b")
    request, is_new = Requests(a, "tutor").ask(WANTED, NOW)
    assert is_new and Requests(b, "tutor").waiting([]) == [request]
    assert Requests(b, "tutor").ask(WANTED, NOW + timedelta(minutes=1)) == (request, False)
    assert Requests(b, "tutor").withdraw(request.request_id, Actor("ben", "test"), NOW) == request
    assert Requests(a, "tutor").waiting(Decisions(a, "tutor").all()) == []
    with pytest.raises(RequestError, match="was decided already"):
        Requests(a, "tutor").withdraw(request.request_id, Actor("ana", "test"), NOW)
    shutil.rmtree(folder_of(a, "tutor"))
    assert Requests(machine("a"), "tutor").all() == [request]


def test_a_request_is_not_kept_where_the_bucket_is_away(machine, monkeypatch):
    a = machine("a")

    def away(path):
        raise S3Error("the bucket is away")

    with monkeypatch.context() as patched:
        patched.setattr(a.mirror, "publish", away)
        with pytest.raises(S3Error, match="is away"):
            Requests(a, "tutor").ask(WANTED, NOW)
    assert Requests(a, "tutor").all() == []


def test_an_alert_that_was_not_taken_yet_is_tried_again_and_no_machine_keeps_its_cause_twice(machine, monkeypatch):
    alert = Alert(kind="drift", workload="tutor", cause="r1", at=datetime.now(UTC), title="t", text="t", todo="t", facts={})
    a, later = machine("a"), datetime.now(UTC)

    def look(lake):
        outbox = Outbox(lake, "tutor")
        with outbox.opened() as mine:
            assert mine
            return outbox.add(alert, ["webhook"], later), [each.id for each in outbox.waiting("webhook", later)]

    assert look(a) == (True, [alert.id])
    assert look(a) == (False, [alert.id])
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert look(machine("b")) == (False, [])


def test_a_claim_that_two_processes_publish_does_not_fail_the_command_that_publishes_the_rest(machine):
    a = machine("a")
    path = a.root / "deciding" / "tutor" / "0.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    machine("b").mirror.bucket.put("deciding/tutor/0.json", b"another", None)
    a.mirror.push()
    assert path.read_text() == "{}"

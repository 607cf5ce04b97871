"""Decisions, requests and alerts of a lake in a bucket: every machine sees those of the others, and its own again."""

import shutil
from datetime import UTC, datetime, timedelta

import pytest

from resources.deciding.decisions import Decision, Decisions, decision_id
from resources.deciding.requests import RequestError, Requests, RetrainingRequest, folder_of
from resources.endpoints.endpoint_log import Actor
from resources.lake.tables import Tables
from resources.monitoring.alerts.outbox import Outbox
from resources.monitoring.alerts.settings import Alert
from stores.s3 import S3Error

NOW = datetime(2026, 6, 5, 9, tzinfo=UTC)
WANTED = RetrainingRequest.of("tutor", Actor("ana", "test", "wrong prices"))


def made(window):
    return Decision(
        "tutor", decision_id("tutor", "new_logs", "", window), NOW, "new_logs", "rows came", {}, [], "nothing", "", False
    )


def test_a_claim_whose_machine_was_killed_before_its_row_is_completed_on_another_machine(machine, monkeypatch):
    a, b, claimed = machine("a"), machine("b"), made("day 1")

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

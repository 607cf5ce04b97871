"""Decisions and requests of a lake in a bucket: every machine sees the claims and the requests of the others."""

import shutil
from datetime import UTC, datetime, timedelta

import pytest

from resources.deciding.decision import Decision, decision_id
from resources.deciding.decisions_table import Decisions
from resources.deciding.requests import Request, Requests, folder_of
from resources.releasing.signature import Signature
from resources.tables import Tables
from stores.s3 import S3Error

NOW = datetime(2026, 6, 5, 9, tzinfo=UTC)
WANTED = Request.of("tutor", Signature("ana", "test", "wrong prices"))


def made(window):
    return Decision("tutor", decision_id("tutor", "new_logs", "", window), NOW, "new_logs", "rows came", {}, [], "nothing", "", False)


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
    assert Requests(b, "tutor").withdraw(request, Signature("ben", "test"), NOW)
    assert Requests(a, "tutor").waiting(Decisions(a, "tutor").all()) == []
    assert not Requests(a, "tutor").withdraw(request, Signature("ana", "test"), NOW)
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

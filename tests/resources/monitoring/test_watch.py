"""The watch after a promotion in a lake: one rollback with its numbers, and never against what a person decided since."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.served_series import windows
from pipelines.releasing.release_list import releases_of
from pipelines.status.lake_status import status_of
from resources.endpoints.approvals import approve, roll_back
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.monitoring.champions import watch
from resources.monitoring.champions.watch import WATCH, WatchedSessions, look_after_promotion
from resources.releases.release import ReleaseRef, read_release
from resources.releases.settings import WatchSettings

ANN = Actor("ann", "MILLRACE_USER")
SETTINGS = WatchSettings()
CALM = {"scatter": 0.02, "hourly": 0.01}
"""Blocks of 10 minutes, at any hour of the day."""


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


@pytest.fixture
def promoted(lake, make_release):
    """The old and the new champion's directories, and when the new one was promoted."""
    old, new = make_release(lake, 1), make_release(lake, 2)
    promote(lake, old)
    return old, new, promote(lake, new)


def promote(lake, directory):
    approve(lake, directory, ANN)
    return Endpoint(lake, "tutor").promote(ReleaseRef.of(directory), ANN).changed_at


def serve(lake, release, found):
    rows = [
        dict.fromkeys(SCHEMAS["serving_metrics"].names)
        | {
            "workload": "tutor",
            "endpoint": "e",
            "release": release,
            "window_start": each.start,
            "window_end": each.end,
            "drafts": each.drafts,
            "draft_tokens": 3 * each.drafts,
            "accepted_tokens": each.accepted_tokens,
            "requests": each.requests,
            "errors": each.errors,
            "latency_ms": [],
            "finished": [],
        }
        for each in found
    ]
    Tables(lake).append("serving_metrics", pa.Table.from_pylist(rows, schema=SCHEMAS["serving_metrics"]))


def talk(lake, release, start, count, status=lambda number: "ok", digest=None, source="gateway"):
    """Sessions of one answer each, a minute apart. release None: rows that do not name it."""
    cleaned, interactions, opinions = [], [], []
    for number in range(count):
        ts = start + timedelta(minutes=number)
        ids = {"workload": "tutor", "dt": ts.date(), "interaction_id": f"{release}-{source}-{start}-{number}", "ts": ts}
        cleaned.append(
            dict.fromkeys(SCHEMAS["cleaned_interactions"].names)
            | ids
            | {
                "session_id": f"s{source}{start}{number}",
                "status": status(number),
                "messages": "[]",
                "completion": json.dumps({"role": "assistant", "content": "grain"}),
            }
        )
        interactions.append(
            dict.fromkeys(SCHEMAS["interactions"].names)
            | ids
            | {"release": release, "served_model_digest": digest, "source": source}
        )
        opinions.append(dict.fromkeys(SCHEMAS["feedback"].names) | ids | {"name": "thumbs", "value": 1.0})
    for name, rows in (("cleaned_interactions", cleaned), ("interactions", interactions), ("feedback", opinions)):
        rows = [{column: row[column] for column in SCHEMAS[name].names} for row in rows]
        Tables(lake).append(name, pa.Table.from_pylist(rows, schema=SCHEMAS[name]))


def week(rng, at, **more):
    return windows(rng, at.replace(minute=0, second=0, microsecond=0) - timedelta(days=6), 6 * 24, minutes=10, **CALM, **more)


def test_a_fall_of_acceptance_is_rolled_back_once_and_a_person_has_the_last_word(lake, promoted):
    old, new, at = promoted
    rng = np.random.default_rng(0)
    serve(lake, old.name, week(rng, at))
    serve(lake, new.name, windows(rng, at, 10, minutes=10, **CALM, fall=0.4))
    early = look_after_promotion(lake, "tutor", SETTINGS, at + timedelta(minutes=1))
    assert early.rolled_back is None and "is watched for 24.0 hours more: acceptance: no " in early.sentence
    look = look_after_promotion(lake, "tutor", SETTINGS, at + timedelta(hours=10))
    assert look.rolled_back.champion == old.name and Endpoint(lake, "tutor").read().champion == old.name
    [*_, entry] = Endpoint(lake, "tutor").entries()
    assert (entry.by, entry.action, entry.replaces) == (WATCH, "rolled back", new.name)
    assert "10.0 hours after its promotion the served acceptance length is 1." in entry.reason
    assert f"release {old.name} had 2." in entry.reason and "at most 1.00% of promotions" in entry.reason
    listed = {row["version"]: row for row in releases_of(lake, "tutor")}
    assert listed[new.name]["decision"] == "withdrawn" and listed[new.name]["rolled_back"]["by"] == WATCH
    assert listed[old.name]["rolled_back"] is None
    [workload] = status_of(lake).workloads
    assert workload.endpoint.rolled_back.startswith(f"release {new.name} was rolled back by millrace watch on ")
    count = len(Endpoint(lake, "tutor").entries())
    again = look_after_promotion(lake, "tutor", SETTINGS, at + timedelta(hours=10))
    assert "came back by a rollback (millrace watch" in again.sentence
    roll_back(lake, new, ANN)  # a person brings it back by name
    assert "came back by a rollback (ann" in look_after_promotion(lake, "tutor", SETTINGS, at + timedelta(hours=10)).sentence
    roll_back(lake, old, ANN)
    approve(lake, new, ANN)
    Endpoint(lake, "tutor").promote(ReleaseRef.of(new), ANN)
    kept = look_after_promotion(lake, "tutor", SETTINGS, at + timedelta(hours=10))
    assert "a person brought it back: it is not rolled back again" in kept.sentence
    assert Endpoint(lake, "tutor").read().champion == new.name
    assert not [entry for entry in Endpoint(lake, "tutor").entries()[count:] if entry.by == WATCH]


def test_a_good_release_stays_and_the_watch_ends(lake, promoted):
    old, new, at = promoted
    rng = np.random.default_rng(1)
    serve(lake, old.name, week(rng, at))
    serve(lake, new.name, windows(rng, at, 23, minutes=10, **CALM))
    look = look_after_promotion(lake, "tutor", SETTINGS, at + timedelta(hours=23))
    assert look.rolled_back is None and look.release == new.name and "is watched for 1.0 hours more" in look.sentence
    assert [found.signal for found in look.findings if found.value is not None] == ["acceptance", "server_errors"]
    assert "is over" in look_after_promotion(lake, "tutor", SETTINGS, at + timedelta(hours=25)).sentence
    assert "which is in the future" in look_after_promotion(lake, "tutor", SETTINGS, at - timedelta(hours=1)).sentence


def test_broken_answers_of_its_own_sessions_are_rolled_back(lake, promoted):
    _, new, at = promoted
    digest = read_release(new).target.digest
    talk(lake, None, at - timedelta(days=1), 300, digest=digest)  # of the same weights: told apart by time
    talk(lake, "elsewhere000", at + timedelta(seconds=1), 300, lambda number: "error")  # a canary's: not the champion's
    talk(lake, new.name, at + timedelta(minutes=1), 240, lambda number: "truncated" if number % 3 == 0 else "ok")
    known = WatchedSessions()
    look = look_after_promotion(lake, "tutor", SETTINGS, at + timedelta(hours=4), known=known)
    assert look.rolled_back is not None and "33." in look.sentence and "are answers that are cut off" in look.sentence
    assert [found.signal for found in look.findings if found.is_outside] == ["broken_answers"]
    assert known.key[0] == look.promotion and len(known.findings) == 4


def test_rated_answers_of_millrace_chat_are_no_sessions_of_a_release(lake):
    at = datetime(2026, 6, 1, tzinfo=UTC)
    for source in ("gateway", None, "millrace_chat"):
        talk(lake, "r", at, 3, source=source)
    talk(lake, "r", at + timedelta(hours=2), 1)  # half an hour later the sessions before it are over
    found = watch._of_release(Tables(lake), "tutor", "r", at, at + timedelta(days=1), {})
    assert len(found) == 6


def test_rows_are_read_again_only_when_they_changed(lake, promoted, monkeypatch):
    old, new, at = promoted
    talk(lake, old.name, at - timedelta(days=1), 60)
    known, reads = WatchedSessions(), []
    real = watch._of_release
    monkeypatch.setattr(watch, "_of_release", lambda *words: reads.append(words[2]) or real(*words))
    for _ in range(2):
        look_after_promotion(lake, "tutor", SETTINGS, at + timedelta(hours=1), known=known)
    assert reads == [new.name, old.name]
    talk(lake, new.name, at + timedelta(minutes=1), 2)
    look_after_promotion(lake, "tutor", SETTINGS, at + timedelta(hours=1), known=known)
    assert len(reads) == 4
    wider = SETTINGS.model_copy(update={"bad_answers_rise": 0.2})  # the recipe tolerates more now
    look_after_promotion(lake, "tutor", wider, at + timedelta(hours=1), known=known)
    assert len(reads) == 6


def test_an_endpoint_that_moves_meanwhile_is_left_alone(lake, promoted, make_release, monkeypatch):
    old, new, at = promoted
    rng = np.random.default_rng(2)
    serve(lake, old.name, week(rng, at))
    serve(lake, new.name, windows(rng, at, 10, minutes=10, **CALM, fall=0.5))
    third = make_release(lake, 3)

    def moved(*words):
        promote(lake, third)
        return old.name

    monkeypatch.setattr(watch, "rollback_target", moved)
    look = look_after_promotion(lake, "tutor", SETTINGS, at + timedelta(hours=10))
    assert look.rolled_back is None and "cannot be rolled back: tutor: the endpoint was changed meanwhile" in look.sentence
    assert Endpoint(lake, "tutor").read().champion == third.name


def test_releases_that_draft_otherwise_are_not_compared(lake, make_release):
    old, new = make_release(lake, 1, drafts=True), make_release(lake, 2, drafts=True)
    promote(lake, old)
    at, rng = promote(lake, new), np.random.default_rng(4)
    serve(lake, old.name, week(rng, at))
    serve(lake, new.name, windows(rng, at, 10, minutes=10, **CALM, fall=0.5))
    look = look_after_promotion(lake, "tutor", SETTINGS, at + timedelta(hours=10))
    assert look.rolled_back is None and "the champion before drafts otherwise" in look.sentence


def test_a_former_champion_whose_files_changed_is_not_returned_to(lake, promoted):
    old, new, at = promoted
    rng = np.random.default_rng(3)
    serve(lake, old.name, week(rng, at))
    serve(lake, new.name, windows(rng, at, 10, minutes=10, **CALM, fall=0.5))
    (old / "serve-vllm.sh").write_text("changed")
    look = look_after_promotion(lake, "tutor", SETTINGS, at + timedelta(hours=10))
    assert look.rolled_back is None and "does worse than it should, and cannot be rolled back" in look.sentence
    assert "serve-vllm.sh" in look.sentence and Endpoint(lake, "tutor").read().champion == new.name


def test_nobody_is_watched_before_there_is_somebody_to_return_to(lake, make_release):
    assert "no release is served yet" in look_after_promotion(lake, "tutor", SETTINGS).sentence
    promote(lake, make_release(lake, 1))
    assert "is the first champion" in look_after_promotion(lake, "tutor", SETTINGS).sentence

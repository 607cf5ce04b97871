"""The watch after a promotion in a lake: one rollback with its numbers, and never against what a person decided since."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.served_series import PROMOTED, sessions, windows
from pipelines.releasing.release_list import releases_of
from pipelines.status.lake_status import status_of
from resources.endpoints.approvals import record_approval, roll_back
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.monitoring.champions import watch
from resources.monitoring.champions.evidence import SIGNALS, SLOTS, MetricsWindow, alpha_of, blocks_of, evidence, upper_mean
from resources.monitoring.champions.served_acceptance import (
    compare_acceptance,
    compare_errors,
    compare_sessions,
    from_report,
    from_windows,
)
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
    record_approval(lake, directory, ANN)
    return Endpoint(lake, "tutor").promote(ReleaseRef.of(directory), ANN).changed_at


def serve(lake, release, found):
    row = dict.fromkeys(SCHEMAS["serving_metrics"].names) | {"workload": "tutor", "endpoint": "e", "release": release}
    row |= {"latency_ms": [], "finished": []}
    rows = [
        row
        | {"window_start": each.start, "window_end": each.end, "draft_tokens": 3 * each.drafts}
        | {name: getattr(each, name) for name in ("drafts", "accepted_tokens", "requests", "errors")}
        for each in found
    ]
    Tables(lake).append("serving_metrics", pa.Table.from_pylist(rows, schema=SCHEMAS["serving_metrics"]))


def talk(lake, release, start, count, status=lambda number: "ok", digest=None, source="gateway"):
    """Sessions of one answer each, a minute apart. release None: rows that do not name it."""
    cleaned, interactions, opinions = [], [], []
    for number in range(count):
        ts = start + timedelta(minutes=number)
        ids = {"workload": "tutor", "dt": ts.date(), "interaction_id": f"{release}-{source}-{start}-{number}", "ts": ts}
        said = {"messages": "[]", "completion": json.dumps({"role": "assistant", "content": "grain"})}
        cleaned.append(ids | said | {"session_id": f"s{source}{start}{number}", "status": status(number)})
        interactions.append(ids | {"release": release, "served_model_digest": digest, "source": source})
        opinions.append(ids | {"name": "thumbs", "value": 1.0})
    for name, rows in (("cleaned_interactions", cleaned), ("interactions", interactions), ("feedback", opinions)):
        rows = [{column: row.get(column) for column in SCHEMAS[name].names} for row in rows]
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
    record_approval(lake, new, ANN)
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


def watched(new, should, hours, settings=SETTINGS):
    """The first hour at which a look finds the release outside, and the finding; None if none of these does."""
    for hour in hours:
        until = PROMOTED + timedelta(hours=hour)
        found = compare_acceptance([window for window in new if window.end <= until], should, settings, PROMOTED, until)
        if found.is_outside:
            return hour, found
    return None


def usual(seed, **series):
    rng = np.random.default_rng(seed)
    return rng, from_windows(windows(rng, PROMOTED - timedelta(days=7), 168, **series), "old", SETTINGS)


def test_evidence_keeps_its_rate_at_every_look_of_dependent_surprises():
    """Each surprise has mean 0 given the past, and a size that the past decides; looked at 8 times."""
    alarms = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        signs, size, found = rng.choice([-1.0, 1.0], 160), 0.1, []
        for sign in signs:
            found.append(size * sign)
            size = min(1.0, size * 2) if sign > 0 else 0.1
        slots = np.arange(160) * SLOTS // 160
        alarms += any(evidence(np.array(found[:end]), slots[:end]) >= 20 for end in range(20, 161, 20))
    assert alarms <= 200 * 0.05 + 2 * (200 * 0.05) ** 0.5


def test_good_hours_before_a_fall_do_not_pay_for_it():
    slots = np.arange(240) * SLOTS // 240
    late = np.where(np.arange(240) >= 210, 0.9, -0.9)
    assert evidence(late, slots) > 1e4 and evidence(np.full(240, -0.9), slots) < 1
    assert evidence(np.array([]), np.array([], int)) == pytest.approx(1)
    with pytest.raises(ValueError, match="below -1"):
        evidence(np.array([-1.5]), np.array([0]))


def test_an_upper_mean_is_above_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(1)
    above = [upper_mean((rng.random(200) < 0.05).astype(float), 0.05) > 0.05 for _ in range(300)]
    assert np.mean(above) >= 0.95 and upper_mean(np.array([0.5]), 0.1) == 1


def test_quiet_watches_are_not_rolled_back_and_falls_are():
    """The benchmark `release_watch` counts over many more."""
    rng, should = usual(0)
    assert should.minutes == 10 and 2.3 < should.low < should.level < 2.6 and len(should.by_hour) == 24
    looks = (2, 6, 12, 24)
    assert not any(watched(windows(rng, PROMOTED, 24), should, looks) for _ in range(15))
    hour, found = watched(windows(rng, PROMOTED, 24, fall=0.3), should, (4, 6, 8))
    assert hour <= 6 and found.high < found.bound and found.value == pytest.approx(2.5 * 0.7, rel=0.1)
    assert "release old had 2.5" in found.words and "less 10%" in found.words and "95 % interval 1." in found.words
    assert watched(windows(rng, PROMOTED, 24, fall=0.3, falls_after_h=12), should, (12, 20))[0] == 20
    assert not watched(windows(rng, PROMOTED, 24, fall=-0.3), should, looks)


def test_a_fall_within_the_tolerance_is_none():
    rng, should = usual(3)
    assert not any(watched(windows(rng, PROMOTED, 24, fall=0.04), should, (6, 12, 24)) for _ in range(5))


def test_without_windows_before_the_report_says_what_should_be():
    rng = np.random.default_rng(4)
    assert from_windows(windows(rng, PROMOTED - timedelta(days=2), 48), "old", SETTINGS) is None
    should = from_report(2.5, 2.4)
    assert not watched(windows(rng, PROMOTED, 24, cycle=0), should, (6, 12, 24))
    _, found = watched(windows(rng, PROMOTED, 24, cycle=0, fall=0.4), should, (8, 12, 24))
    assert "its report's 2.50 (from 2.40 on), less 10%" in found.words


def test_what_a_report_promised_less_of_is_no_fall():
    rng, _ = usual(8)
    old = windows(rng, PROMOTED - timedelta(days=7), 168)
    new = windows(rng, PROMOTED, 24, fall=0.25)
    promised = from_windows(old, "old", SETTINGS, (1.9, 1.85))
    assert watched(new, from_windows(old, "old", SETTINGS, (2.6, 2.5)), (12, 24)) and not watched(new, promised, (12, 24))
    assert "had 2.5" in promised.words and promised.words.endswith("its own report 1.90 (from 1.85 on)")


def test_few_drafts_make_longer_blocks_and_none_say_so():
    _, should = usual(5, drafts=15, scatter=0.2)
    assert should.minutes > 30
    few = windows(np.random.default_rng(5), PROMOTED, 3, drafts=2)
    found = compare_acceptance(few, should, SETTINGS, PROMOTED, PROMOTED + timedelta(hours=3))
    assert "no " in found.problem and "drafts are over yet" in found.problem and not found.is_outside


def test_a_window_of_many_hours_or_none_belongs_to_no_block():
    ends = (PROMOTED + timedelta(hours=5), PROMOTED - timedelta(minutes=1))
    assert blocks_of([MetricsWindow(PROMOTED, end, 100, 1) for end in ends], 10) == []


def test_sessions_of_a_good_release_stay_and_bad_ones_are_found():
    rng = np.random.default_rng(6)
    old = sessions(rng, PROMOTED - timedelta(days=7), 168, per_hour=15)
    for _ in range(8):
        assert not any(found.is_outside for found in compare_sessions(sessions(rng, PROMOTED, 24), old, SETTINGS, PROMOTED))
    worse = compare_sessions(sessions(rng, PROMOTED, 6, broken=0.15), old, SETTINGS, PROMOTED)
    assert [found.signal for found in worse if found.is_outside] == ["broken_answers"]
    [found] = [each for each in worse if each.is_outside]
    assert "are answers that are cut off" in found.words and "the champion before had 1.9%" in found.words
    assert found.low > found.bound > 0.05
    disliked = compare_sessions(sessions(rng, PROMOTED, 6, disliked=0.2), old, SETTINGS, PROMOTED)
    assert [each.signal for each in disliked if each.is_outside] == ["bad_feedback"]


def test_errors_that_the_server_counts_are_found_and_few_blocks_say_so():
    rng = np.random.default_rng(7)
    old = windows(rng, PROMOTED - timedelta(days=2), 48, errors=0.01)
    until = PROMOTED + timedelta(hours=6)
    assert not compare_errors(windows(rng, PROMOTED, 6, errors=0.01), old, SETTINGS, PROMOTED, until).is_outside
    found = compare_errors(windows(rng, PROMOTED, 6, errors=0.2), old, SETTINGS, PROMOTED, until)
    assert found.is_outside and "20." in found.words and "blocks of 10 minutes" in found.words
    assert "fewer than 50" in compare_errors(old, old[:20], SETTINGS, PROMOTED, until).problem


def test_the_rate_is_shared_by_all_signals():
    assert len(SIGNALS) * 2 * alpha_of(0.01) == pytest.approx(0.01)

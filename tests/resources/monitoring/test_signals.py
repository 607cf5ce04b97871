"""The signals of a watch: evidence keeps its rate whenever one looks, quiet endpoints stay, true falls are found."""

from datetime import timedelta

import numpy as np
import pytest

from benchmarks.served_series import PROMOTED, sessions, windows
from resources.monitoring.champions.evidence import SIGNALS, SLOTS, MetricsWindow, alpha_of, blocks_of, evidence, upper_mean
from resources.monitoring.champions.served_acceptance import (
    compare_acceptance,
    compare_errors,
    compare_sessions,
    from_report,
    from_windows,
)
from resources.releases.settings import WatchSettings

SETTINGS = WatchSettings()


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
    found = compare_acceptance(
        windows(np.random.default_rng(5), PROMOTED, 3, drafts=2), should, SETTINGS, PROMOTED, PROMOTED + timedelta(hours=3)
    )
    assert "no " in found.problem and "drafts are over yet" in found.problem and not found.is_outside


def test_a_window_of_many_hours_or_none_belongs_to_no_block():
    odd = [
        MetricsWindow(PROMOTED, PROMOTED + timedelta(hours=5), 100, 200),
        MetricsWindow(PROMOTED, PROMOTED - timedelta(minutes=1), 100, 1),
    ]
    assert blocks_of(odd, 10) == []


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
    assert [
        each.signal
        for each in compare_sessions(sessions(rng, PROMOTED, 6, disliked=0.2), old, SETTINGS, PROMOTED)
        if each.is_outside
    ] == ["bad_feedback"]


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

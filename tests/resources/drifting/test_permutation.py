"""Permutation tests over sessions: their rate of false alarms with sessions of dependent rows, power, ties, big groups."""

import math
from datetime import date, timedelta

import numpy as np
import pytest

from resources.drifting.compare import bound_of, day_level_p, dispersion
from resources.drifting.permutation import ENOUGH, Columns, permutation_tests

SHARES, RISE = Columns("shapes", "shares", 0, 6), Columns("errors", "rise", 6, 2)


def sessions(rng, count, *, errors=0.05, shapes=None, like=None):
    """Sessions of 1 to 12 rows of one shape each; their rows fail all together or not at all. like: odds of a day's shapes."""
    rows = rng.integers(1, 13, count)
    found = np.zeros((count, 8))
    found[np.arange(count), rng.choice(6, count, p=shapes if like is None else like)] = rows
    failed = rng.random(count) < errors
    found[:, 6], found[:, 7] = failed * rows, ~failed * rows
    return found


def test_p_values_keep_their_rate_though_rows_of_a_session_are_alike():
    """300 quiet windows. At 5 %, a test by row alarms in most of them; by session within binomial bounds."""
    rng, hits, by_row = np.random.default_rng(2), 0, 0
    for _ in range(300):
        window, reference = sessions(rng, 40), sessions(rng, 120)
        found = permutation_tests([window], [reference], [SHARES], rng, 1 / 100)[0]
        hits += found.p <= 0.05
        p = (window.sum(0) + reference.sum(0))[:6] / (window.sum() + reference.sum()) * 2
        expected, seen = window[:, :6].sum() * p, window[:, :6].sum(0)
        by_row += ((seen - expected) ** 2 / expected).sum() * 0.75 > 11.07  # chi-squared with 5 degrees of freedom, 95 %
    assert hits <= 15 + 3 * math.sqrt(15) and by_row > 150


def test_a_change_is_found_and_its_p_value_is_as_small_as_asked():
    rng = np.random.default_rng(3)
    window, reference = sessions(rng, 100, errors=0.4), sessions(rng, 300)
    shapes, errors = permutation_tests([window], [reference], [SHARES, RISE], rng, 1e-4)
    assert errors.p == pytest.approx(1e-4, rel=0.01) and errors.value > 0.2 and errors.splits == 10_000
    assert shapes.p > 0.001 and shapes.splits <= 10_000


def test_a_rise_does_not_alarm_on_a_fall():
    rng = np.random.default_rng(4)
    found = permutation_tests([sessions(rng, 100, errors=0.0)], [sessions(rng, 300, errors=0.4)], [RISE], rng, 1e-3)[0]
    assert found.value < -0.2 and found.p > 0.9


def test_a_test_stops_at_enough_splits_that_reach_its_value():
    rng = np.random.default_rng(5)
    window = sessions(rng, 40)
    found = permutation_tests([window], [window], [SHARES], rng, 1e-6)[0]
    assert found.p == 1 and found.splits <= 200 and found.value == pytest.approx(0)
    assert pytest.approx(1) == ENOUGH / round(ENOUGH / found.p)


def test_many_sessions_are_put_together_and_the_rate_stays():
    rng, hits = np.random.default_rng(6), 0
    for _ in range(60):
        hits += permutation_tests([sessions(rng, 1_000)], [sessions(rng, 3_001)], [RISE], rng, 1 / 100)[0].p <= 0.05
    assert hits <= 9
    assert permutation_tests([sessions(rng, 1_000, errors=0.1)], [sessions(rng, 3_001)], [RISE], rng, 1e-3)[0].p < 0.002


def test_a_pattern_of_the_week_is_no_change_within_strata():
    rng = np.random.default_rng(7)
    week, weekend = [0.5, 0.3, 0.05, 0.05, 0.05, 0.05], [0.05, 0.05, 0.05, 0.05, 0.3, 0.5]
    window = [sessions(rng, 100, like=week), sessions(rng, 10, like=weekend)]
    reference = [sessions(rng, 100, like=week), sessions(rng, 200, like=weekend)]
    assert permutation_tests(window, reference, [SHARES], rng, 1e-3)[0].p > 0.01
    together = [np.concatenate(window)], [np.concatenate(reference)]
    assert permutation_tests(*together, [SHARES], rng, 1e-3)[0].p < 0.002


def test_a_stratum_without_sessions_is_refused():
    rng = np.random.default_rng(8)
    for window, reference in (([], []), ([np.zeros((0, 8))], [sessions(rng, 5)]), ([sessions(rng, 5)], [np.zeros((0, 8))])):
        with pytest.raises(ValueError, match="need a session in every stratum"):
            permutation_tests(window, reference, [SHARES], rng, 0.01)


def reference_days(rng, count, spread):
    """Days whose odds of shapes differ by more than their sessions, if `spread` is above 0."""
    start = date(2026, 6, 1)
    return {start + timedelta(day): sessions(rng, 60, like=_odds(rng, spread)) for day in range(count)}


def _odds(rng, spread):
    odds = np.exp(spread * rng.normal(size=6))
    return odds / odds.sum()


def test_days_that_differ_more_than_their_sessions_have_a_dispersion_above_one_and_a_higher_bound():
    rng = np.random.default_rng(9)
    quiet, uneven = (
        dispersion(days, list(days), [SHARES], rng)[0] for days in (reference_days(rng, 12, 0.0), reference_days(rng, 12, 0.8))
    )
    assert quiet.days == uneven.days == 11 and 0.5 < quiet.factor < 1.6 < uneven.factor
    days = reference_days(rng, 12, 0.8)
    window = sessions(rng, 60, like=_odds(rng, 0.8))
    found = permutation_tests([window], [np.concatenate(list(days.values()))], [SHARES], rng, 1e-3)[0]
    assert day_level_p(found, SHARES, uneven) > found.p
    assert bound_of(found, SHARES, uneven, 1e-3) > bound_of(found, SHARES, None, 1e-3) > 0


def test_uneven_days_alarm_seldom_though_their_sessions_alone_would():
    """40 quiet windows of days that differ: sessions alone call most of them a change."""
    rng = np.random.default_rng(10)
    days = reference_days(rng, 12, 0.8)
    found_days = dispersion(days, list(days), [SHARES], rng)[0]
    everything = np.concatenate(list(days.values()))
    by_session = by_day = 0
    for _ in range(40):
        found = permutation_tests([sessions(rng, 60, like=_odds(rng, 0.8))], [everything], [SHARES], rng, 1 / 200)[0]
        by_session += found.p <= 0.05
        by_day += max(found.p, day_level_p(found, SHARES, found_days)) <= 0.05
    assert by_session >= 20 and by_day <= 8


def test_too_few_days_say_nothing_about_days():
    rng = np.random.default_rng(11)
    days = reference_days(rng, 5, 0.0)
    assert dispersion(days, list(days), [SHARES], rng) == [None]

"""Statistics of two groups, the F distribution and Holm's procedure against values known from elsewhere."""

import math
from datetime import date, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.drifting.compare import bound_of, day_level_p, dispersion, f_quantile, holm, sessions_alike, upper_tail
from resources.drifting.permutation import ENOUGH, Columns, fall, permutation_tests, population_stability, rise
from resources.drifting.session_counts import novelty, vocabulary
from resources.drifting.settings import reference_of, strata_of, window_of


def counts(*rows):
    return np.array(rows, dtype=float)


def test_the_same_shares_have_no_distance_and_it_grows_with_the_change():
    same, little, much = population_stability(counts([500, 500], [600, 400], [900, 100]), counts([5000, 5000]).repeat(3, 0))
    assert same == pytest.approx(0, abs=1e-9) and 0 < little < much
    smoothed = (600.5 / 1001 - 0.5) * math.log((600.5 / 1001) / 0.5) + (400.5 / 1001 - 0.5) * math.log((400.5 / 1001) / 0.5)
    assert little == pytest.approx(smoothed, rel=1e-6)


def test_a_category_that_one_group_lacks_has_a_finite_distance():
    assert np.isfinite(population_stability(counts([10, 0]), counts([0, 10])))[0]


def test_a_rise_has_a_direction_and_groups_without_counts_do_not_differ():
    assert rise(counts([30, 70]), counts([10, 90]))[0] == pytest.approx(0.2)
    assert fall(counts([30, 70]), counts([10, 90]))[0] == pytest.approx(-0.2)
    assert rise(counts([0, 0]), counts([10, 90]))[0] == 0 and population_stability(counts([3, 4]), counts([0, 0]))[0] == 0


@pytest.mark.parametrize(("value", "above", "below", "tail"), [
    (4.9646, 1, 10, 0.05),
    (3.3258, 5, 10, 0.05),
    (10.044, 1, 10, 0.01),
    (2.5379, 6, 24, 0.0482),  # printed tables
    (2.0, 2, 4, 0.25),
    (1.0, 2, 2, 0.5),  # (1 + x above / below) ** (-below / 2) for above = 2
])  # fmt: skip
def test_the_tail_of_f_is_that_of_the_tables(value, above, below, tail):
    assert upper_tail(value, above, below) == pytest.approx(tail, rel=2e-2)


def test_the_far_tail_of_f_with_two_degrees_is_exact():
    for value in (10.0, 50.0, 400.0):
        assert upper_tail(value, 2, 30) == pytest.approx((1 + 2 * value / 30) ** -15, rel=1e-8)


@given(st.floats(1e-8, 0.9), st.floats(1, 60), st.floats(3, 500))
def test_the_quantile_is_the_inverse_of_the_tail(probability, above, below):
    assert upper_tail(f_quantile(probability, above, below), above, below) == pytest.approx(probability, rel=1e-3)


def test_degrees_of_freedom_of_nothing_are_refused():
    with pytest.raises(ValueError, match="degrees of freedom above 0"):
        upper_tail(1.0, 0, 3)


def test_holm_alarms_in_order_until_one_does_not():
    found = holm([0.02, 0.001, 0.9, 0.013], rate=0.05)
    assert [each.alarm for each in found] == [True, True, False, True]
    assert [round(each.level, 4) for each in found] == [0.025, 0.0125, 0.05, 0.0167]
    assert [each.alarm for each in holm([0.02, 0.02, 0.02], rate=0.05)] == [False, False, False]
    assert holm([], 0.05) == []


def test_holm_keeps_its_rate_over_dependent_tests():
    """1,000 quiet days with 12 tests that share half of their variance: days with an alarm within binomial bounds of 5 %."""
    rng = np.random.default_rng(1)
    normal = (rng.normal(size=(1_000, 1)) + rng.normal(size=(1_000, 12))) / math.sqrt(2)
    p_values = [[0.5 * math.erfc(x / math.sqrt(2)) for x in row] for row in normal]
    alarms = sum(any(each.alarm for each in holm(row, 0.05)) for row in p_values)
    assert 5 <= alarms <= 50 + 3 * math.sqrt(50)


@pytest.mark.parametrize("p_values", [[0.0], [1.2], [-0.1]])
def test_what_is_no_p_value_is_refused(p_values):
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        holm(p_values, 0.05)


def test_new_and_known_n_grams_are_counted_by_text():
    known = vocabulary(pa.array(["the mill grinds the grain", "the river turns the wheel"]), 3)
    new, old = novelty(pa.array(["the mill grinds the flour", "grinds the grain", "two words", "", None]), known, 3)
    assert list(new) == [1, 0, 0, 0, 0] and list(old) == [2, 1, 0, 0, 0]


def test_an_empty_vocabulary_knows_nothing():
    known = vocabulary(pa.array([], pa.string()), 2)
    new, old = novelty(pa.array(["one two three"]), known, 2)
    assert len(known) == 0 and list(new) == [2] and list(old) == [0]
    assert known.dtype == np.uint64


SHAPES, ERRORS = Columns("shapes", "shares", 0, 2), Columns("errors", "rise", 2, 2)


def test_a_session_s_columns_sum_to_one_in_each_test_that_counts_it():
    counts = np.array([[30.0, 10.0, 4.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 3.0]])
    found = sessions_alike(counts, [SHAPES, ERRORS])
    assert found.tolist() == [[0.75, 0.25, 1, 0], [0, 1, 0, 0], [0, 0, 0.25, 0.75]] and counts[0, 0] == 30


def test_a_quarter_of_short_sessions_among_long_ones_is_found_by_session_and_not_by_row():
    rng = np.random.default_rng(1)

    def day(short):
        rows = rng.geometric(0.04, 200).astype(float)
        rows[:short] = 1
        shape = (np.arange(200) < short) * 1
        found = np.zeros((200, 4))
        found[np.arange(200), shape] = rows
        return found

    window, reference = day(50), np.concatenate([day(0), day(2), day(1)])
    by_row = permutation_tests([window], [reference], [SHAPES], rng, 1e-4)[0]
    by_session = permutation_tests(
        [sessions_alike(window, [SHAPES])], [sessions_alike(reference, [SHAPES])], [SHAPES], rng, 1e-4
    )[0]
    assert by_session.value > 10 * by_row.value and by_session.p < 2e-4


FIRST = date(2026, 6, 1)  # a Monday


def days(count, first=FIRST):
    return [first + timedelta(day) for day in range(count)]


def test_the_first_full_window_is_the_reference_and_its_first_quarter_the_vocabulary():
    found = reference_of(days(40), 28, FIRST + timedelta(40))
    assert (found.start, found.end) == (FIRST, date(2026, 6, 28))
    assert list(found.vocabulary) == days(7) and list(found.comparison) == days(21, date(2026, 6, 8))


def test_a_window_that_is_not_over_is_none():
    assert reference_of(days(28), 28, date(2026, 6, 28)) is None
    assert reference_of(days(28), 28, date(2026, 6, 29)) is not None
    assert reference_of([], 28, FIRST) is None
    assert reference_of(days(3, FIRST + timedelta(100)), 28, FIRST) is None  # all of it in the future


def test_a_release_is_compared_with_the_window_before_it_if_that_is_full():
    made = date(2026, 7, 20)
    found = reference_of(days(60), 28, date(2026, 8, 1), before=made)
    assert (found.start, found.end) == (date(2026, 6, 22), date(2026, 7, 19))
    assert reference_of(days(60), 28, date(2026, 8, 1), before=date(2026, 6, 10)).start == FIRST


def test_days_without_traffic_are_left_out_and_a_part_without_days_is_no_reference():
    some = [day for day in days(28) if day.weekday() < 5]
    assert len(reference_of(some, 28, date(2026, 7, 1)).comparison) == 15
    assert reference_of([FIRST, date(2026, 7, 20)], 28, date(2026, 8, 1)) is None


def test_a_window_holds_days_after_the_reference_only():
    traffic = set(days(40))
    assert window_of(date(2026, 7, 1), 7, traffic, date(2026, 6, 28)) == days(3, date(2026, 6, 29))
    assert window_of(date(2026, 7, 1), 1, traffic, date(2026, 6, 28)) == [date(2026, 7, 1)]


def test_mondays_are_compared_with_mondays_where_there_are_two():
    comparison = days(21, date(2026, 6, 8))
    [(inside, outside)] = strata_of([date(2026, 6, 29)], comparison)
    assert inside == [date(2026, 6, 29)] and outside == [date(2026, 6, 8), date(2026, 6, 15), date(2026, 6, 22)]
    assert len(strata_of(days(7, date(2026, 6, 29)), comparison)) == 7
    assert strata_of([date(2026, 6, 29)], days(10)) == [([date(2026, 6, 29)], days(10))]
    weekdays = [day for day in comparison if day.weekday() < 5]
    assert strata_of([date(2026, 7, 4)], weekdays) == [([date(2026, 7, 4)], weekdays)]
    assert strata_of([date(2026, 6, 29)], []) == [] and strata_of([], comparison) == []


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

"""Statistics of two groups, the F distribution and Holm's procedure against values known from elsewhere."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.drifting.compare import holm
from resources.drifting.dispersion import f_quantile, upper_tail
from resources.drifting.permutation import fall, population_stability, rise


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


@pytest.mark.parametrize(
    ("value", "above", "below", "tail"),
    [
        (4.9646, 1, 10, 0.05),
        (3.3258, 5, 10, 0.05),
        (10.044, 1, 10, 0.01),
        (2.5379, 6, 24, 0.0482),  # printed tables
        (2.0, 2, 4, 0.25),
        (1.0, 2, 2, 0.5),  # (1 + x above / below) ** (-below / 2) for above = 2
    ],
)
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

"""Earlier outcomes correct the next prediction: by their mean ratio, its lower bound by the lower end of that ratio."""

from dataclasses import replace

import pytest
from examples import NOW, decision
from hypothesis import given
from hypothesis import strategies as st

from resources.deciding.evidence import Estimate
from resources.deciding.options import gain_ratio, ratio_of, recent


def test_no_outcome_changes_nothing():
    assert ratio_of([]) == ratio_of([(0.0, 1.0)]) and ratio_of([]).low == 1.0


def test_the_lower_end_is_that_of_student_s_t():
    found = ratio_of([(1.0, 0.5)])  # with two pretended ones: 0.5, 1, 1
    assert found.value == pytest.approx(5 / 6) and found.low == pytest.approx(5 / 6 - 2.920 / 6)
    assert ratio_of([(1.0, 0.23)]).low == 0 < ratio_of([(1.0, 0.24)]).low < ratio_of([(1.0, 0.23), (1.0, 1.0)]).low


def test_an_outcome_above_its_prediction_lowers_no_bound():
    found = ratio_of([(0.027, 0.082)])
    assert found.value > 1 and found.low == 1.0
    assert ratio_of([(1.0, 2.0), (1.0, 0.8)]).low == ratio_of([(1.0, 1.0), (1.0, 0.8)]).low < 1


def test_a_loss_counts_as_no_gain_and_a_single_ratio_as_10_at_most():
    assert ratio_of([(0.01, -0.06)]) == ratio_of([(0.01, 0.0)])
    assert ratio_of([(0.01, 5.0)]).value == pytest.approx(4.0)


@given(st.floats(-1, 1), st.floats(0, 1), st.lists(st.tuples(st.floats(0.001, 1), st.floats(-1, 3)), max_size=6))
def test_a_corrected_bound_is_the_product_of_both_bounds_and_never_above_its_value(value, below, outcomes):
    ratio, low = ratio_of(outcomes), value - below
    found = Estimate(value, low, "").times(ratio.value, ratio.low)
    assert 0 <= ratio.low <= 1 and found.low <= found.value
    if low > 0:
        assert found.low == pytest.approx(low * ratio.low)
    else:
        assert found.low <= 0


def test_an_action_that_failed_once_is_tried_again_when_its_outcome_is_old():
    failed = replace(decision(1, days_ago=59), gain=-0.06)
    old = replace(decision(2, days_ago=61), gain=-0.06)
    assert gain_ratio(recent([old, failed], NOW), failed.action).n == 1 and gain_ratio([failed], failed.action).low == 0
    assert gain_ratio(recent([old], NOW), old.action).low == 1.0

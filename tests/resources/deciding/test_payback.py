"""What a faster drafter saves: nothing without a gain, all of the time with an endless one, and the cost after the payback
days."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.deciding.options import break_even_requests, payback_days, saved_hours_a_day

HOURS = st.floats(0.01, 1e6)
GAINS = st.floats(0.001, 10)


@given(HOURS, GAINS)
def test_a_gain_saves_the_time_that_the_old_drafter_took_more(hours, gain):
    saved = saved_hours_a_day(hours, gain)
    assert 0 < saved < hours
    assert (hours - saved) * (1 + gain) == pytest.approx(hours)  # as many tokens in what is left, at the new speed


@given(HOURS, HOURS, GAINS)
def test_after_the_payback_days_the_cost_is_saved(cost, hours, gain):
    saved = saved_hours_a_day(hours, gain)
    assert payback_days(cost, saved) * saved == pytest.approx(cost)


@given(HOURS, st.floats(1, 1000), st.floats(1e-6, 1), GAINS)
def test_at_the_break_even_requests_the_cost_is_saved_on_the_last_day(cost, days, hours_a_request, gain):
    requests = break_even_requests(cost, days, hours_a_request, gain)
    assert payback_days(cost, saved_hours_a_day(requests * hours_a_request, gain)) == pytest.approx(days)


def test_no_gain_never_pays_back():
    assert payback_days(1.0, saved_hours_a_day(10.0, 0.0)) is None
    assert payback_days(1.0, saved_hours_a_day(10.0, -0.2)) is None
    assert break_even_requests(1.0, 30, 0.1, 0.0) is None
    assert saved_hours_a_day(10.0, -1.0) == -math.inf

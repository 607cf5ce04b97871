"""The chart of served acceptance: quiet series stay below its bound, falls are found, odd series are named."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from resources.drifting import acceptance_chart as cusum
from resources.drifting.acceptance_chart import HourlyDrafts, acceptance, bound_for, chart
from resources.drifting.chart_kernels import alarms_in
from resources.drifting.settings import DriftSettings

START = datetime(2026, 6, 1, tzinfo=UTC)
RATE = 0.01


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(cusum, "SERIES", 10)


def served(seed, days, *, falls_on=None, fall=0.05, drafts=4_000):
    rng, noise, hours = np.random.default_rng(seed), 0.0, []
    for hour in range(24 * days):
        noise = 0.5 * noise + rng.normal(0, 0.026)
        tau = 2.5 + 0.12 * np.sin(2 * np.pi * (hour % 24) / 24) + noise
        tau *= 1 - fall * (falls_on is not None and hour >= 24 * falls_on)
        hours.append(HourlyDrafts(START + timedelta(hours=hour), drafts, int(drafts * (tau - 1))))
    return hours


def charted(hours, now=None, **changes):
    return acceptance(hours, DriftSettings(**changes), RATE, now or hours[-1].hour + timedelta(hours=1))


def test_a_chart_sums_and_begins_again_after_an_alarm():
    sums, alarms = chart(np.array([1.0, -3.0, 2.0, 2.0, 1.0]), 3.0)
    assert list(sums) == [1, 0, 2, 4, 1] and list(alarms) == [False, False, False, True, False]


def test_a_bound_keeps_its_rate_on_new_days():
    """On average over histories: 24 of 28 days, each followed by 10,000 days with 100 expected alarms, 1.05 times as many in
    all. Single histories have from 0.01 to 7 times the rate. A bound that is lower by a quarter of a nat has 1.37 times the
    rate, one that is higher by half a nat 0.64 times."""
    alarms = 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        bound = bound_for(rng.normal(-0.5, 1, 24 * 28), 24, RATE, rng)
        alarms += int(alarms_in(rng.normal(-0.5, 1, (10, 24_000)), bound).sum())
    assert 0.8 < alarms / (24 * 10 * 1_000 * RATE) < 1.3


def test_a_cycle_of_the_day_is_no_fall_and_a_fall_is_found_within_a_day():
    quiet = charted(served(2, 60))
    assert not any(day.alarm for day in quiet.days) and len(quiet.days) == 32
    fallen = charted(served(2, 60, falls_on=40))
    assert fallen.bound == quiet.bound
    assert next(day.day for day in fallen.days if day.alarm) == (START + timedelta(days=40)).date()


def test_a_rise_does_not_alarm():
    assert not any(day.alarm for day in charted(served(3, 40, falls_on=30, fall=-0.1)).days)


def test_looking_every_minute_sees_complete_hours_only():
    hours = served(4, 40)
    whole = charted(hours)
    torn = [*hours, HourlyDrafts(hours[-1].hour + timedelta(hours=1), 10, 0)]
    assert charted(torn, now=hours[-1].hour + timedelta(minutes=90)).days == whole.days


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        ([], "no served hour"),
        (served(5, 10), "served for 10 days of the 28"),
        ([each for each in served(5, 40) if each.hour.day < 6 or each.hour.month > 6], "has 5 days with drafts, fewer than 7"),
    ],
)
def test_what_cannot_be_charted_is_said_in_words(hours, said):
    found = acceptance(hours, DriftSettings(), RATE, hours[-1].hour + timedelta(hours=1) if hours else START)
    assert said in found.problem and not found.days


def test_hours_without_drafts_and_a_constant_series_are_charted():
    hours = [each for each in served(6, 40) if each.hour.hour > 3]
    assert len(charted(hours).days) == 12
    constant = [HourlyDrafts(each.hour, 100, 150) for each in served(7, 40, drafts=100)]
    assert not any(day.alarm for day in charted(constant).days)


def test_a_history_of_a_day_has_no_bound():
    with pytest.raises(ValueError, match="at least two days"):
        bound_for(np.zeros(30), 24, RATE, np.random.default_rng(0))

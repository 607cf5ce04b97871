"""An alarm goes on until its value falls below half of its bound, so that one that hovers is one cause."""

from datetime import date, timedelta

import numpy as np

from resources.deciding.evidence import episodes
from resources.drifting.acceptance_chart import chart

FIRST = date(2026, 6, 1)


def rows(*values, test="novelty", bound=1.0):
    return [
        {
            "dt": FIRST + timedelta(days=day),
            "window_days": 1,
            "test": test,
            "value": value,
            "bound": bound,
            "alarm": value > bound,
        }
        for day, value in enumerate(values)
    ]


def test_an_alarm_that_hovers_is_one_episode_since_its_first_day():
    [found] = episodes(rows(0.2, 1.2, 0.8, 1.1, 0.7))
    assert found.start == FIRST + timedelta(days=1) and found.end == FIRST + timedelta(days=4) and found.value == 0.7


def test_below_half_of_the_bound_it_ends_and_a_later_one_is_another():
    assert episodes(rows(1.2, 0.4)) == []
    [again] = episodes(rows(1.2, 0.4, 1.5))
    assert again.start == FIRST + timedelta(days=2)


def test_no_alarm_is_no_episode_and_tests_are_told_apart():
    assert episodes([]) == [] and episodes(rows(0.9, 0.9)) == []
    found = episodes([*rows(2.0), *rows(0.1, test="language"), *rows(3.0, test="tools")])
    assert [each.test for each in found] == ["novelty", "tools"]


def test_a_test_that_was_not_compared_for_long_is_over():
    assert episodes([*rows(2.0), *rows(*[0.1] * 20, test="language")]) == []


def test_a_fall_of_acceptance_whose_chart_begins_anew_after_each_alarm_is_one_episode():
    falls = rows(1.2, 0.3, 0.6, 1.1, 0.4, 0.7, 1.3, test="acceptance")
    for days in range(1, len(falls) + 1):
        [found] = episodes(falls[:days])
        assert found.start == FIRST
    assert len({each.start for each in episodes(falls)}) == 1


def test_a_fall_of_acceptance_ends_after_seven_days_with_drafts_below_half_of_the_bound():
    low = [1.2, 0.4, 0.3, 0.2, 0.0, 0.0, 0.1]
    assert episodes(rows(*low, test="acceptance")) and not episodes(rows(*low, 0.0, test="acceptance"))
    assert episodes(rows(*low, 0.6, 0.1, 0.1, test="acceptance"))  # the chart rose in between
    silent = rows(*low, test="acceptance")
    silent[-1]["dt"] += timedelta(days=9)  # days without drafts say nothing
    assert episodes(silent)
    [again] = episodes(rows(*low, 0.0, 1.5, test="acceptance"))
    assert again.start == FIRST + timedelta(days=8)


def test_a_simulated_fall_of_acceptance_is_one_episode_on_each_of_its_days():
    per_hour = 0.5  # standard deviations: the chart alarms about every third day
    increments = np.random.default_rng(1).normal(per_hour**2 / 2, per_hour, 24 * 60)
    sums, alarms = chart(increments, 8.0)
    days = [
        {
            "dt": FIRST + timedelta(days=day),
            "window_days": 1,
            "test": "acceptance",
            "value": sums[24 * day : 24 * day + 24].max(),
            "bound": 8.0,
            "alarm": bool(alarms[24 * day : 24 * day + 24].any()),
        }
        for day in range(60)
    ]
    first = next(place for place, day in enumerate(days) if day["alarm"])
    assert sum(day["alarm"] for day in days) > 10
    assert {each.start for until in range(first, 60) for each in episodes(days[: until + 1])} == {days[first]["dt"]}
    assert all(episodes(days[: until + 1]) for until in range(first, 60))

"""A budget holds in every window of seven days; 0 means nothing."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resources.deciding.evidence import BudgetSettings
from resources.deciding.policy import refusal
from tests.resources.deciding.examples import NOW, decision


def test_the_third_run_of_a_week_of_two_waits_and_the_sentence_says_until_when():
    runs = [decision(1, days_ago=0.5), decision(2, days_ago=0.1)]
    said = refusal(BudgetSettings(runs_per_week=2), runs, 0.1, None, NOW)
    assert said and "runs" in said and "2026-06-1" in said and "runs_per_week" in said
    assert refusal(BudgetSettings(runs_per_week=2), runs[:1], 0.1, None, NOW) is None


def test_what_started_no_run_uses_no_budget():
    free = [decision(1, outcome="not_run"), decision(2, dry_run=True), decision(3, action="nothing")]
    assert refusal(BudgetSettings(runs_per_week=1), free, 0.1, None, NOW) is None


def test_real_costs_replace_the_predicted_ones():
    settings = BudgetSettings(runs_per_week=100, device_hours_per_week=1.0)
    waits = decision(1, days_ago=0.0, outcome="running", predicted_s=3_000, cost_s=None)
    assert "device hours" in refusal(settings, [waits], 0.5, None, NOW)
    assert refusal(settings, [decision(1, days_ago=0.0, predicted_s=3_000, cost_s=60)], 0.5, None, NOW) is None


@pytest.mark.parametrize("given_budget", [{"runs_per_week": 0}, {"device_hours_per_week": 0}, {"money_per_week": 0}])
def test_a_budget_of_0_says_that_nothing_is_run(given_budget):
    [name] = given_budget
    said = refusal(BudgetSettings(**given_budget), [], 0.1, 1.0, NOW)
    assert said == f"automation.decide.budget.{name} is 0"


def test_a_run_that_costs_more_than_a_week_s_budget_never_fits():
    assert "never" in refusal(BudgetSettings(device_hours_per_week=1), [], 2.0, None, NOW)
    assert "price_per_device_hour" in refusal(BudgetSettings(money_per_week=5), [], 2.0, None, NOW)


def most_within(days, budget, cost_hours=0.1, every=timedelta(hours=1)):
    """Most runs that start within less than so many days, if each starts as soon as the budget suffices."""
    runs, now = [], NOW
    while now < NOW + timedelta(days=60):
        if refusal(budget, runs, cost_hours, None, now) is None:
            runs.append(decision(len(runs), ts=now, cost_s=cost_hours * 3600, predicted_s=cost_hours * 3600))
        else:
            now += every
    starts = [each.ts for each in runs]
    return max(sum(first <= each < first + timedelta(days=days) for each in starts) for first in starts), len(starts)


@pytest.mark.parametrize(
    ("runs", "within_a_week", "in_60_days"), [(1, 1, 9), (2, 2, 18), (3, 3, 27), (0.5, 1, 5), (0.25, 1, 3)]
)
def test_at_most_the_runs_of_a_week_start_within_seven_days(runs, within_a_week, in_60_days):
    assert most_within(7, BudgetSettings(runs_per_week=runs)) == (within_a_week, in_60_days)


def test_at_most_the_device_hours_of_a_week_start_within_seven_days():
    most, _ = most_within(7, BudgetSettings(runs_per_week=10_000, device_hours_per_week=2), cost_hours=0.5)
    assert most == 4


def test_an_unknown_cost_is_within_no_budget_of_costs():
    for budget, money in ((BudgetSettings(device_hours_per_week=1e6), None), (BudgetSettings(money_per_week=1e6), None)):
        assert "unknown" in refusal(budget, [], None, money, NOW)
    assert refusal(BudgetSettings(), [], None, None, NOW) is None


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.floats(0.05, 1), st.floats(0, 3)), min_size=1, max_size=40))
def test_within_a_week_no_more_than_the_hours_are_used_but_what_runs_cost_beyond_their_prediction(costs):
    budget, runs, now = BudgetSettings(runs_per_week=10_000, device_hours_per_week=1), [], NOW
    for predicted, ratio in costs:
        while refusal(budget, runs, predicted, None, now) is not None:
            now += timedelta(hours=6)
        runs.append(decision(len(runs), ts=now, cost_s=predicted * ratio * 3600, predicted_s=predicted * 3600))
    for first in runs:
        within = [each for each in runs if first.ts <= each.ts < first.ts + timedelta(days=7)]
        beyond = max(0.0, within[-1].spent_hours - within[-1].chosen.predicted_cost_s / 3600)
        assert sum(each.spent_hours for each in within) <= 1 + beyond + 1e-6

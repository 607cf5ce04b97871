"""The cheapest option that is worth its cost is chosen, by the last measured gain; every other one says why not."""

import math
from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resources.deciding.causes import RetrainingCause, causes, held_by
from resources.deciding.costs import ActionCost
from resources.deciding.evidence import BudgetSettings, Episode, episodes
from resources.deciding.options import break_even_requests, payback_days, saved_hours_a_day, weigh
from resources.deciding.policy import refusal
from resources.drifting.acceptance_chart import chart
from resources.stages.model_policy import ModelPolicy
from tests.resources.deciding.examples import COSTS, FACTS, NOW, SEEN, SETTINGS, decision, with_settings

NEW_LOGS, ACCEPTANCE = RetrainingCause("new_logs", "", ""), RetrainingCause("acceptance", "", "")


def chosen(cause=NEW_LOGS, seen=SEEN, costs=COSTS, facts=FACTS, settings=SETTINGS, decisions=()):
    options, action, why = weigh(cause, seen, costs, with_settings(settings, facts), decisions, NOW)
    assert why and [each.action for each in options if not each.why_not] == [action]
    return action, {each.action: each for each in options}, why


def measured(action, gain, days_ago=20, **more):
    return decision(days_ago=days_ago, action=action, gain=gain, **more)


def test_the_cheapest_that_pays_back_by_its_last_gain_is_chosen_at_the_cost_of_its_last_run():
    runs = [measured("drafter_continued", 0.5, 30, cost_s=1), measured("drafter_continued", 0.02, 20, cost_s=1_800)]
    action, options, why = chosen(decisions=runs)
    assert action == "drafter_continued" and "pays back" in why and "+" not in why and "2.0%" in why
    assert "costs less" in options["drafter_new"].why_not
    option = options[action]
    assert option.predicted_cost_s == 1_800 and option.payback_days == pytest.approx(0.5 / (27.7778 * 0.02 / 1.02), rel=1e-3)
    assert option.break_even_requests == pytest.approx(1_000_000 * option.payback_days / 30, rel=1e-3)


def test_what_was_never_measured_is_tried_once_and_what_gained_nothing_not_again_until_that_is_old():
    action, options, why = chosen()
    assert (action, options[action].predicted_cost_s) == ("drafter_continued", 900) and "this run measures it" in why
    failed = measured("drafter_continued", 0.0, days_ago=59)
    assert chosen(decisions=[failed])[0] == "drafter_new"
    assert chosen(decisions=[replace(failed, ts=measured("", 0, days_ago=61).ts)])[0] == "drafter_continued"
    refused = measured("drafter_continued", 0.2, outcome="refused_by_gates")
    assert chosen(decisions=[refused])[0] == chosen(decisions=[replace(refused, gain=None)])[0] == "drafter_new"
    for outcome, choice in (("released", "drafter_new"), ("no_better", "drafter_new"), ("cancelled", "drafter_continued")):
        assert chosen(decisions=[measured("drafter_continued", None, outcome=outcome)])[0] == choice
    both = [failed, measured("drafter_new", -0.02)]
    assert chosen(decisions=both)[0] == "sft_continued"
    action, _, why = chosen(decisions=[*both, measured("sft_continued", 0.005)])  # a full run learns the same rows
    assert action == "nothing" and "nothing pays back" in why


def test_a_widened_evaluation_costs_more_than_the_last_run():
    run = measured("drafter_continued", 0.02, cost_s=300)
    alarm = Episode("novelty", 7, date(2026, 6, 1), date(2026, 6, 9), 0.4, 0.2)
    for going, seconds in (((), 300), ((alarm,), 900)):
        options = chosen(seen=replace(SEEN, episodes=going), decisions=[run])[1]
        assert options["drafter_continued"].predicted_cost_s == seconds


def test_an_endpoint_with_little_traffic_gets_nothing_and_is_told_from_where_on_it_would():
    seen, unworthy = replace(SEEN, requests_a_day=100), [measured("sft_continued", 0.0)]
    action, options, why = chosen(seen=seen, decisions=unworthy)
    assert action == "nothing" and "nothing pays back" in why
    assert "even if decoding took no time" in options["drafter_continued"].why_not
    assert "from 300 requests a day on" in options["drafter_continued"].why_not  # 0.25 h / 30 d, of 1e-4 s a token
    gained = chosen(seen=seen, decisions=[*unworthy, measured("drafter_continued", 0.25, cost_s=900)])[1]["drafter_continued"]
    assert "from 1,500 requests a day on" in gained.why_not


def test_without_speed_or_traffic_payback_is_unknown_unless_nobody_asks_for_it():
    unknown, unworthy = replace(SEEN, tokens_per_second=None), [measured("sft_continued", 0.0005)]
    action, options, _ = chosen(seen=unknown, decisions=unworthy)
    assert action == "nothing" and "tokens_per_second" in options["drafter_continued"].why_not
    at_any = SETTINGS.model_copy(update={"payback_days": None})
    assert chosen(seen=unknown, settings=at_any, decisions=unworthy)[0] == "drafter_continued"


def test_answers_that_got_worse_need_a_model_and_lost_acceptance_a_drafter():
    assert chosen(RetrainingCause("feedback", "", ""))[0] == "sft_continued"
    assert chosen(ACCEPTANCE)[1]["sft_continued"].why_not == "other answers bring no acceptance back"


def test_a_drafter_gains_the_acceptance_that_was_lost_since_the_release_whatever_earlier_runs_gained():
    lost, failed = replace(SEEN, tau_released=2.0, tau_served=1.6), [measured("drafter_continued", -0.1)]
    _, options, why = chosen(ACCEPTANCE, lost, decisions=failed)
    assert options["drafter_new"].predicted_gain == pytest.approx(0.25) and "1.600 as served, 2.000" in why
    assert options["drafter_continued"].predicted_gain == pytest.approx(0.2)
    assert chosen(NEW_LOGS, lost, decisions=failed)[1]["drafter_continued"].predicted_gain == -0.1


def test_preferences_are_learnt_where_more_feedback_is_bad_and_the_recipe_says_so():
    policy = ModelPolicy(off=FACTS.policy.off - {"preference", "datasets.preference"})
    facts, told = replace(FACTS, policy=policy), {"preference_on_feedback": True}
    costs = {**COSTS, "preference": ActionCost({"preference_model": 1_800.0})}
    worse = replace(SEEN, episodes=(Episode("bad_feedback", 7, date(2026, 6, 1), date(2026, 6, 9), 0.4, 0.2),))
    feedback = RetrainingCause("feedback", "", "")

    def made(cause=feedback, seen=worse, facts=facts, **more):
        return chosen(cause, seen, costs, facts, SETTINGS.model_copy(update=more))

    action, options, why = made(**told)
    assert action == "preference" and "nothing predicts its gain" in why and options[action].predicted_cost_s == 1_800
    assert "preference_on_feedback is off" in made()[1]["preference"].why_not and made()[0] == "sft_continued"
    errors = replace(SEEN, episodes=(replace(worse.episodes[0], test="errors"),))
    assert "like the answers less" in made(seen=errors, **told)[1]["preference"].why_not
    assert made(NEW_LOGS, **told)[0] == "drafter_continued"
    assert made(facts=FACTS, **told)[1]["preference"].why_not == "the recipe trains on no preferences"


def test_drift_of_the_traffic_alone_trains_nothing_unless_the_recipe_says_so():
    action, _, why = chosen(RetrainingCause("drift", "", ""))
    assert action == "nothing" and "drift_trains" in why and "evaluation" in why
    trains = SETTINGS.model_copy(update={"drift_trains": True})
    assert chosen(RetrainingCause("drift", "", ""), settings=trains)[0] == "drafter_continued"


def test_what_the_operator_asks_for_is_a_full_run_whatever_it_gains():
    worthless = [measured(action, 0.0) for action in ("full", "drafter_new")]
    assert chosen(RetrainingCause("schedule", "", ""), decisions=worthless)[0] == "full"


def test_what_was_never_made_is_left_to_a_person():
    action, _, why = chosen(seen=replace(SEEN, missing=("sft_model",)))
    assert action == "nothing" and "millrace run RECIPE" in why


def test_a_recipe_without_drafter_or_fine_tuning_has_no_such_option():
    off = replace(FACTS, policy=ModelPolicy(off=frozenset({"speculator"})))
    assert chosen(facts=off)[0] == "sft_continued"
    assert "no drafter" in chosen(facts=off)[1]["drafter_continued"].why_not


def test_a_release_of_form_adapter_is_fine_tuned_from_the_base_model():
    unworthy = [measured(action, 0.0) for action in ("drafter_continued", "drafter_new")]
    action, options, _ = chosen(facts=replace(FACTS, as_adapter=True), decisions=unworthy)
    assert action == "full" and "no adapter on the base model" in options["sft_continued"].why_not


def test_an_action_of_unknown_cost_is_not_chosen_and_its_stages_are_named():
    unknown = {**COSTS, "drafter_continued": ActionCost({"sft_dataset": 1.0}, ("quantized_model", "evaluation_report"))}
    action, options, _ = chosen(costs=unknown)
    assert action == "drafter_new"
    assert "no run of quantized_model and evaluation_report was seen" in options["drafter_continued"].why_not


FIRST = date(2026, 6, 1)


def rows(*values, test="novelty", bound=1.0):
    about = {"window_days": 1, "test": test, "bound": bound}
    return [
        {**about, "dt": FIRST + timedelta(days=day), "value": value, "alarm": value > bound} for day, value in enumerate(values)
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
    highest, alarming = sums.reshape(60, 24).max(1), alarms.reshape(60, 24).any(1)
    days = [
        row | {"alarm": bool(alarm)} for row, alarm in zip(rows(*highest, test="acceptance", bound=8.0), alarming, strict=True)
    ]
    first = next(place for place, day in enumerate(days) if day["alarm"])
    assert sum(day["alarm"] for day in days) > 10
    assert {each.start for until in range(first, 60) for each in episodes(days[: until + 1])} == {days[first]["dt"]}
    assert all(episodes(days[: until + 1]) for until in range(first, 60))


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


def kinds(seen, settings=SETTINGS):
    return [each.kind for each in causes(seen, settings)]


def episode(test):
    return Episode(test, 1, date(2026, 6, 3), date(2026, 6, 9), 2.0, 1.0)


def test_new_rows_are_a_cause_from_both_bounds_on():
    [found] = causes(SEEN, SETTINGS)
    assert found.kind == "new_logs" and "300 rows" in found.text and "d1" in found.window and "2026-06-09" in found.window
    assert kinds(SEEN, SETTINGS.model_copy(update={"least_new_rows": 301})) == []
    assert kinds(SEEN, SETTINGS.model_copy(update={"least_new_share": 0.31})) == []
    assert kinds(replace(SEEN, drafter=None, model=None)) == []  # nothing was trained yet


def test_each_test_of_drift_is_the_cause_that_it_speaks_for():
    quiet = replace(SEEN, rows=1_000)
    assert kinds(replace(quiet, episodes=(episode("acceptance"),))) == ["acceptance"]
    assert kinds(replace(quiet, episodes=(episode("bad_feedback"),))) == ["feedback"]
    assert kinds(replace(quiet, episodes=(episode("novelty"), episode("language")))) == ["drift"]


def test_the_strongest_cause_comes_first_and_a_cause_that_is_not_listed_is_left_out():
    every = replace(SEEN, episodes=(episode("novelty"), episode("acceptance")), schedule_due="2026-06-10 03:00")
    assert kinds(every) == ["acceptance", "schedule", "new_logs", "drift"]
    assert kinds(every, SETTINGS.model_copy(update={"causes": ["drift"]})) == ["drift"]


def test_an_episode_has_one_window_as_long_as_it_goes_on():
    first = replace(SEEN, rows=1_000, episodes=(episode("acceptance"),))
    later = replace(first, episodes=(replace(first.episodes[0], end=date(2026, 6, 20), value=1.1),))
    assert causes(first, SETTINGS)[0].window == causes(later, SETTINGS)[0].window


def held(*decisions, seen=SEEN, settings=SETTINGS, now=NOW):
    found = held_by(seen, decisions, settings, now)
    return found.kind if found else None


def test_one_run_and_one_candidate_at_a_time():
    assert held() is None
    assert held(decision(outcome="running", settled_ts=None)) == "at_work"
    assert held(decision(outcome="waiting", run_id=None, settled_ts=None)) == "at_work"
    assert held(seen=replace(SEEN, candidate="r2")) == "candidate"


def test_the_cool_down_begins_with_the_end_of_the_last_run():
    ended = decision(days_ago=1 / 24)  # settled now
    assert held(ended) == "cool_down"
    assert held(ended, now=NOW + timedelta(hours=11.9)) == "cool_down"
    assert held(ended, now=NOW + timedelta(hours=12.1)) is None


def test_failures_in_a_row_double_the_wait_up_to_a_bound():
    failed = [decision(number, days_ago=4 - number, outcome="failed") for number in (1, 2)]
    assert held(*failed, now=failed[-1].settled_ts + timedelta(hours=47)) == "cool_down"
    assert held(*failed, now=failed[-1].settled_ts + timedelta(hours=49)) is None
    many = [decision(number, days_ago=40 - number, outcome="failed") for number in range(30)]
    assert held(*many, now=many[-1].settled_ts + timedelta(days=13.9)) == "cool_down"
    assert held(*many, now=many[-1].settled_ts + timedelta(days=14.1)) is None


def test_a_bound_on_the_back_off_makes_no_wait_shorter_than_the_cool_down():
    once, short = decision(days_ago=1 / 24, outcome="failed"), SETTINGS.model_copy(update={"most_back_off_days": 0})
    assert held(once, settings=short, now=NOW + timedelta(hours=11.9)) == "cool_down"
    assert held(once, settings=short, now=NOW + timedelta(hours=12.1)) is None


def test_a_success_ends_the_back_off():
    assert held(decision(1, 4, "failed"), decision(2, 3, "failed"), decision(3, 0.6, "released")) is None


def test_a_failure_without_a_cool_down_still_waits_two_hours():
    once = decision(days_ago=1 / 24, outcome="failed")
    no_pause = SETTINGS.model_copy(update={"cool_down_hours": 0})
    assert held(once, settings=no_pause, now=NOW + timedelta(hours=1.9)) == "cool_down"
    assert held(once, settings=no_pause, now=NOW + timedelta(hours=2.1)) is None


def test_quiet_hours_are_in_the_recipe_s_time_zone():
    quiet = SETTINGS.model_copy(update={"quiet": ["* 12 * * *"]})
    assert held(settings=quiet) == "quiet"
    assert held(settings=quiet.model_copy(update={"timezone": "Europe/Amsterdam"})) is None  # 14:00 there


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

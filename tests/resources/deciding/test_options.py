"""The cheapest option that is worth its cost is chosen, by the last measured gain; every other one says why not."""

from dataclasses import replace
from datetime import date

import pytest

from resources.deciding.causes import RetrainingCause
from resources.deciding.costs import ActionCost
from resources.deciding.evidence import Episode
from resources.deciding.options import weigh
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
    runs = [
        measured("drafter_continued", gain, days_ago, cost_s=cost) for gain, days_ago, cost in ((0.5, 30, 1), (0.02, 20, 1_800))
    ]
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
    run, alarm = (
        measured("drafter_continued", 0.02, cost_s=300),
        Episode("novelty", 7, date(2026, 6, 1), date(2026, 6, 9), 0.4, 0.2),
    )
    for episodes, seconds in (((), 300), ((alarm,), 900)):
        options = chosen(seen=replace(SEEN, episodes=episodes), decisions=[run])[1]
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
    assert (
        chosen(RetrainingCause("drift", "", ""), settings=SETTINGS.model_copy(update={"drift_trains": True}))[0]
        == "drafter_continued"
    )


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

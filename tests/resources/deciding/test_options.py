"""The cheapest option whose gain pays back by its lower bound is chosen; every other one says why not."""

from dataclasses import replace
from datetime import date

import pytest

from resources.deciding.causes import RetrainingCause
from resources.deciding.evidence import Episode, Estimate
from resources.deciding.options import ActionForecast, weigh
from resources.stages.model_policy import ModelPolicy
from tests.resources.deciding.examples import FACTS, PREDICTED, SEEN, SETTINGS, decision, with_settings

NEW_LOGS, ACCEPTANCE = RetrainingCause("new_logs", "", ""), RetrainingCause("acceptance", "", "")


def chosen(cause=NEW_LOGS, seen=SEEN, predicted=PREDICTED, facts=FACTS, settings=SETTINGS, decisions=()):
    options, action, why = weigh(cause, seen, predicted, with_settings(settings, facts), decisions)
    assert why and [each.action for each in options if not each.why_not] == [action]
    return action, {each.action: each for each in options}, why


def test_the_cheapest_that_pays_back_is_chosen():
    action, options, why = chosen()
    assert action == "drafter_continued" and "pays back" in why
    assert "costs less" in options["drafter_new"].why_not
    found = options[action]
    assert found.predicted_cost_s == 900 and found.payback_days == pytest.approx(0.25 / (27.7778 * 0.02 / 1.02), rel=1e-3)
    assert found.break_even_requests == pytest.approx(1_000_000 * found.payback_days / 30, rel=1e-3)


def test_the_lower_bound_decides_not_the_expected_gain():
    unsure = {**PREDICTED, "drafter_continued": ActionForecast({"speculator": 900.0}, Estimate(0.5, 0.0, ""))}
    action, options, _ = chosen(predicted=unsure)
    assert action == "drafter_new" and "is not above 0" in options["drafter_continued"].why_not


def test_an_endpoint_with_little_traffic_gets_nothing_and_is_told_from_where_on_it_would():
    action, options, why = chosen(
        seen=replace(SEEN, requests_a_day=100),
        predicted={
            **PREDICTED,
            "sft_continued": ActionForecast({"sft_model": 1.0}, Estimate(0.0, 0.0, "")),
            "full": ActionForecast({"sft_model": 1.0}, Estimate(0.0, 0.0, "")),
        },
    )
    assert action == "nothing" and "nothing pays back" in why
    assert "requests a day" in options["drafter_continued"].why_not


def test_without_speed_or_traffic_payback_is_unknown_unless_nobody_asks_for_it():
    unknown = replace(SEEN, tokens_per_second=None)
    small = {
        name: replace(each, gain=Estimate(0.001, 0.0005, "")) if name in ("sft_continued", "full") else each
        for name, each in PREDICTED.items()
    }
    action, options, _ = chosen(seen=unknown, predicted=small)
    assert action == "nothing" and "tokens_per_second" in options["drafter_continued"].why_not
    assert chosen(seen=unknown, settings=SETTINGS.model_copy(update={"payback_days": None}))[0] == "drafter_continued"


def test_answers_that_got_worse_need_a_model_and_lost_acceptance_a_drafter():
    assert chosen(RetrainingCause("feedback", "", ""))[0] == "sft_continued"
    assert chosen(ACCEPTANCE)[1]["sft_continued"].why_not == "other answers bring no acceptance back"


def test_preferences_are_learnt_where_more_feedback_is_bad_and_the_recipe_says_so():
    policy = ModelPolicy(off=FACTS.policy.off - {"preference", "datasets.preference"})
    facts, told = replace(FACTS, policy=policy), {"preference_on_feedback": True}
    predicted = {**PREDICTED, "preference": ActionForecast({"preference_model": 1_800.0}, None)}
    worse = replace(SEEN, episodes=(Episode("bad_feedback", 7, date(2026, 6, 1), date(2026, 6, 9), 0.4, 0.2),))
    feedback = RetrainingCause("feedback", "", "")

    def made(cause=feedback, seen=worse, facts=facts, **more):
        return chosen(cause, seen, predicted, facts, SETTINGS.model_copy(update=more))

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


@pytest.mark.parametrize("kind", ["base_revision", "schedule"])
def test_what_the_operator_asks_for_is_a_full_run_whatever_it_gains(kind):
    nothing_known = {name: ActionForecast(each.stages, None) for name, each in PREDICTED.items()}
    assert chosen(RetrainingCause(kind, "", ""), predicted=nothing_known)[0] == "full"


def test_what_was_never_made_is_left_to_a_person():
    action, _, why = chosen(seen=replace(SEEN, missing=("sft_model",)))
    assert action == "nothing" and "millrace run RECIPE" in why


def test_a_recipe_without_drafter_or_fine_tuning_has_no_such_option():
    off = replace(FACTS, policy=ModelPolicy(off=frozenset({"speculator"})))
    assert chosen(facts=off)[0] == "sft_continued"
    assert "no drafter" in chosen(facts=off)[1]["drafter_continued"].why_not


def test_an_unknown_cost_is_not_chosen():
    unknown = {**PREDICTED, "drafter_continued": ActionForecast(None, Estimate(0.05, 0.02, ""))}
    action, options, _ = chosen(predicted=unknown)
    assert action == "drafter_new" and "unknown" in options["drafter_continued"].why_not


def test_predictions_that_were_too_good_are_corrected_by_their_outcomes():
    poor = [
        decision(number, days_ago=20 + number, predicted_gain=0.05, gain=0.0, predicted_s=900, cost_s=1_800)
        for number in range(8)
    ]
    _, options, _ = chosen(decisions=poor)
    corrected = options["drafter_continued"]
    assert corrected.predicted_cost_s == pytest.approx(900 * (8 * 2 + 2) / 10)
    assert corrected.predicted_gain == pytest.approx(0.05 * 2 / 10) and corrected.gain_lower < 0.02 * 2 / 10 + 1e-9


def test_a_release_of_form_adapter_is_fine_tuned_from_the_base_model():
    action, options, _ = chosen(
        facts=replace(FACTS, as_adapter=True),
        predicted={name: each for name, each in PREDICTED.items() if name in ("sft_continued", "full")},
    )
    assert action == "full" and "no adapter on the base model" in options["sft_continued"].why_not


def test_stages_of_unknown_cost_are_named():
    cause = RetrainingCause("new_logs", "1,000 new rows", "w")
    unknown = {**PREDICTED, "full": replace(PREDICTED["full"], stages=None, unknown=("quantized_model", "evaluation_report"))}
    options = {each.action: each for each in weigh(cause, SEEN, unknown, FACTS, [])[0]}
    assert "no run of quantized_model and evaluation_report was seen" in options["full"].why_not

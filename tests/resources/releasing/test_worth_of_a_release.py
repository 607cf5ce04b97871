"""The sentence that says whether a release is better than its base and than what is served."""

import pytest

from model_ops.evaluation.measurement import Measurement
from resources.releasing.champion import Champion
from resources.releasing.worth import gains, worth_of


def measured(what="loss_increase", against="base", **fields):
    given = {"value": -0.1, "low": -0.12, "high": -0.08, "n": 30, "counted": "rows", "unit": "nats per token"} | fields
    return Measurement(what=what, of="target", against=against, **given)


def score(on="maths", against="base", **fields):
    given = {"value": 0.2, "low": 0.1, "high": 0.3, "n": 100, "counted": "items", "unit": "share", "sampling": "greedy"}
    return measured("accuracy_gain", against, on=on, **given | fields)


def said(*found, learnt=True, champion=None, **report):
    return worth_of({"measurements": [each.model_dump() for each in found], **report}, learnt, champion)


NOTHING = measured(value=-0.0003, low=-0.0005, high=-0.0001)


def test_a_gain_is_named_with_its_measure_and_interval():
    assert said(measured()) == (
        "Measurably better than its base: held-out loss -0.100 nats per token (95 %: -0.120 to -0.080; 30 rows); "
        "no release of other models was served before it."
    )


def test_a_training_that_did_nothing_shows_no_gain():
    assert said(NOTHING).startswith("No gain over its base can be shown: held-out loss")
    assert said().startswith("No gain over its base can be shown; ")
    assert said(measured(low=None, high=None)).startswith("No gain over its base")
    assert said(measured(value=0.2, low=0.1, high=0.3)).startswith("Measurably worse than its base: held-out loss +0.200")


def test_scores_come_before_loss_and_what_contradicts_is_said():
    both = said(score(), measured(value=0.2, low=0.1, high=0.3))
    assert (
        "better than its base: score on maths +0.200 (95 %: +0.100 to +0.300; 100 items), but worse: held-out loss +0.200"
        in both
    )
    alone = said(score(value=0.0, low=-0.1, high=0.1), measured())
    assert "held-out loss -0.100 nats per token (95 %: -0.120 to -0.080; 30 rows), which no other measure shows" in alone
    assert [each.gain.sampling for each in gains([score(), score(sampling="sampled")], "base")] == ["sampled"]


def test_both_sides_of_a_score_are_named_where_both_have_intervals():
    own = score(value=0.7, low=0.6, high=0.8).model_copy(update={"what": "accuracy", "against": ""})
    base = own.model_copy(update={"of": "base", "value": 0.5, "low": 0.4, "high": 0.6})
    both = "score on maths 0.700 (0.600 to 0.800) instead of 0.500 (0.400 to 0.600): +0.200 (95 %: +0.100 to +0.300"
    assert both in said(score(), own, base)
    assert "score on maths +0.200 (95 %" in said(score(), own)
    assert "score on maths +0.200 (95 %" in said(score(), own, base.model_copy(update={"low": None, "high": None}))


@pytest.mark.parametrize(("divergence", "shows"), [(0.2, True), (0.001, False)])
def test_pairs_count_only_where_the_model_moved(divergence, shows):
    pairs = measured("preference_accuracy", "sft", value=0.8, low=0.7, high=0.9, counted="pairs", unit="share")
    moved = measured("divergence_from_parent", "sft", value=divergence, low=0.0, high=0.3)
    text = said(NOTHING, pairs, moved)
    assert ("better than its base: share of held-out pairs whose chosen answer gained more 0.800" in text) == shows
    assert ("30 pairs against sft)" in text) == shows


def test_what_is_served_is_compared_too():
    served = Champion("3f2a")
    assert said(measured(), measured(against="champion"), champion=served).count("easurably better than") == 2
    none = said(measured(), measured(against="champion", value=0.0, low=-0.01, high=0.02), champion=served)
    assert "; no gain over champion 3f2a can be shown: held-out loss +0.000" in none
    assert "; champion 3f2a has the same target." in said(measured(), champion=Champion("3f2a", no_target="same"))
    assert "; its files are gone." in said(measured(), champion=Champion("3f2a", problem="its files are gone"))


def test_a_release_that_trained_nothing_has_no_gain_to_show():
    assert said(measured(), learnt=False).startswith("Its models were not trained, so it has no gain over its base to show; ")


def test_answers_that_make_no_sense_are_named():
    loss = Measurement(what="loss", of="target", value=5.95, n=30, counted="rows", unit="nats per token")
    loops = [{"drafter": "none", "sampling": "as logged", "looping_share": 0.62}]
    text = said(measured(), loss, acceptance=loops)
    assert text.startswith("62% of its held-out answers, sampled as logged, repeat themselves; its perplexity on held-out ")
    assert "answers is 384, so answers of its own can hardly make sense; measurably better than its base: " in text
    fine = said(measured(), loss.model_copy(update={"value": 1.5}), acceptance=[loops[0] | {"looping_share": 0.02}])
    assert "repeat" not in fine and "perplexity" not in fine

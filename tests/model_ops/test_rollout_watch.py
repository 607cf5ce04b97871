"""What is told of rounds of rollouts: entropy that falls or grows, and the part of a grader that rules the grade."""

import numpy as np
import pytest

from model_ops.graders import Grade, GraderSettings
from model_ops.reinforcement.rollout_plan import RolloutWatch, variance_shares
from tests.model_ops.test_rft import Told, rollout


def told_of(*entropies, resume_after=None):
    told = Told()
    watch = RolloutWatch(told, cuts_are_masked=True)
    for number, entropy in enumerate(entropies):
        made = [rollout([5], [6, 7, 8, 9], logs=[-entropy, -entropy, 0.0, -9.0], sampled=[1, 1, 0, 0])]
        watch.see([made, made], taught=2)
        if number == resume_after:
            state, watch = watch.state(), RolloutWatch(told, cuts_are_masked=True)
            watch.resume(state)
    return [said.partition(":")[2].split(" nats")[0].strip() for said in told.said]


@pytest.mark.parametrize(
    ("entropies", "said"),
    [
        ((1.0, 0.5, 0.06, 2.9), []),
        ((1.0, 0.049, 0.01), ["the entropy fell to 0.049"]),
        ((0.4, 1.1, 1.3, 5.0), ["the entropy grew from 0.400 to 1.300"]),
        ((0.06, 0.16, 0.19), ["the entropy grew from 0.060 to 0.190"]),
    ],
)
def test_an_entropy_that_falls_to_nothing_or_grows_threefold_is_told_once(entropies, said):
    assert told_of(*entropies) == said
    assert told_of(*entropies, resume_after=1) == said, "and by a run that continues"


def test_a_round_without_known_log_probabilities_says_nothing():
    told = Told()
    RolloutWatch(told, True).see([[rollout([5], [6], logs=[float("nan")])], []], taught=2)
    assert told.said == []


def test_shares_of_the_variance_are_those_of_a_regression_and_add_up_to_one():
    random = np.random.default_rng(0)
    right, brief = random.integers(0, 2, 200).astype(float), random.random(200)
    settings = GraderSettings.model_validate(
        {"parts": {"right": {"by": "verifier"}, "brief": {"by": "length", "weight": -0.5}}}
    )
    grades = [Grade(a - 0.5 * b, {"right": a, "brief": b}) for a, b in zip(right, brief, strict=True)]
    found = variance_shares([*grades, Grade(None, {"right": 1.0}, "brief: failed"), Grade(1.0, {"right": 1.0})], settings)
    whole = right - 0.5 * brief
    # the slope of a regression of each weighted part on the grade
    expected = {"right": np.polyfit(whole, right, 1)[0], "brief": np.polyfit(whole, -0.5 * brief, 1)[0]}
    assert found == pytest.approx(expected) and sum(found.values()) == pytest.approx(1) and found["right"] > 0.8
    assert variance_shares([grades[0]] * 3, settings) == {} and variance_shares([], settings) == {}
    one = GraderSettings.model_validate("verifier")
    assert variance_shares([Grade(1.0, {"verifier": 1.0}), Grade(0.0, {"verifier": 0.0})], one) == {}
    product = settings.model_copy(update={"combine": "product"})
    assert variance_shares(grades, product) == {}

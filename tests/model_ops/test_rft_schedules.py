"""Likelihood of right answers in the loss, and temperature and length that change over the steps."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError
from test_rft import write_prompts
from tiny_models import write_target

from benchmarks.async_rl import KilledRun
from model_ops.answers import InProcessEngine
from model_ops.graders import Grade, GraderSettings
from model_ops.losses.linear_cross_entropy import token_nll
from model_ops.models.model_directory import load_model
from model_ops.reinforcement.policy_loss import PolicyLoss
from model_ops.reinforcement.rft_settings import RftSettings
from model_ops.reinforcement.rollout_batches import LearntRollout, group_documents, nll_weight, rollout_batches
from model_ops.reinforcement.rollout_plan import variance_shares
from model_ops.reinforcement.rollout_watch import RolloutWatch
from tests.model_ops.test_rft import Told, rollout, run, start  # noqa: F401


def test_the_mean_likelihood_of_answers_that_passed_is_added_with_its_weight(start):  # noqa: F811
    model = load_model(start / "model")
    tokens = [[8, 9, 2], [11, 2], [4, 5, 6, 2]]
    made = [
        LearntRollout(rollout([5, 6], each, logs=[-1.0] * len(each)), n, 1.0 - n, 1 / len(each), 1 / len(each), passed=n != 1)
        for n, each in enumerate(tokens)
    ]

    def loss(weight):
        documents = list(group_documents("p", made, True, 99, nll_weight(made, weight)))
        term = PolicyLoss("grpo", {}, "none", 0.0, 1.0)(model, rollout_batches(documents, 99, {})[0]).terms["loss"]
        return term.sum / term.count

    plain, with_nll = loss(0.0), loss(0.1)
    nll, kept = token_nll(model, rollout_batches(list(group_documents("p", made, True, 99)), 99, {})[0])
    passed = torch.cat([nll[:3], nll[5:]])
    assert len(kept) == 9 and nll_weight(made[1:2], 0.1) == 0.0 == nll_weight(made, 0.0)
    torch.testing.assert_close(with_nll - plain, 0.1 * passed.mean())
    gradient = torch.autograd.grad(with_nll - plain, list(model.parameters()), allow_unused=True)
    assert any(each is not None and each.abs().max() > 0 for each in gradient)


def test_settings_lie_on_a_line_from_the_first_step_to_the_last():
    settings = RftSettings(
        grader="verifier", temperature=1.0, temperature_end=0.6, max_new_tokens=40, max_new_tokens_start=8, max_length=64
    )
    found = [(each.temperature, each.max_new_tokens) for each in (settings.at(place) for place in (0.0, 0.5, 1.0))]
    assert found == [(1.0, 8), (pytest.approx(0.8), 24), (pytest.approx(0.6), 40)]
    plain = RftSettings(grader="verifier", temperature=0.7)
    assert plain.at(0.3) == plain
    with pytest.raises(ValidationError, match="max_new_tokens_start 9 is more than max_new_tokens 8: give less"):
        RftSettings(grader="verifier", max_new_tokens=8, max_new_tokens_start=9)


def test_a_run_samples_and_learns_each_round_at_its_own_temperature_and_length(start, tmp_path, monkeypatch):  # noqa: F811
    seen, sample = [], InProcessEngine.sample
    monkeypatch.setattr(
        InProcessEngine,
        "sample",
        lambda self, *asked: (
            seen.append((round(self.settings.temperature, 6), self.settings.max_new_tokens)) or sample(self, *asked)
        ),
    )
    run(
        start,
        tmp_path / "out",
        steps=3,
        temperature_end=0.5,
        max_new_tokens=6,
        max_new_tokens_start=2,
        nll=0.1,
        held_out_prompts=2,
        held_out_answers=2,
    )
    rounds = [each for each in seen if each != (1.0, 6)]
    assert rounds == [(1.0, 2), (0.75, 4), (0.5, 6)] and seen[0] == seen[-1] == (1.0, 6), "held-out answers are sampled alike"
    lines = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert all(line["canary_gap"] < 1e-4 for line in lines), "the loss divides by the temperature of the round"
    rows = pq.read_table(tmp_path / "out/rollouts.parquet").to_pylist()
    longest = [max(row["tokens"] for row in rows if row["step"] == step) for step in range(3)]
    assert longest[0] == 2 and np.all(np.array(longest) <= [2, 4, 6])


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


@pytest.mark.slow
@pytest.mark.timeout(1_800)  # each start loads torch twice, which takes a minute on a busy machine
def test_kills_of_the_training_and_its_engine_lose_nothing_and_repeat_nothing(tmp_path):
    write_target(tmp_path / "model", layers=2, vocab_size=300)
    write_prompts(tmp_path / "prompts", train=60)
    found = KilledRun(tmp_path / "killed", tmp_path / "model", tmp_path / "prompts", steps=40, seed=1).run(kills=2)
    assert found["lost"] == found["duplicated"] == 0 and found["rollouts"] == 40 * 3 * 4
    assert 1 <= found["largest_staleness"] <= 2

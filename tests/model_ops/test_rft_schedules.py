"""Likelihood of right answers in the loss, and temperature and length that change over the steps."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError

from model_ops.answers import InProcessEngine
from model_ops.losses.linear_cross_entropy import token_nll
from model_ops.models.model_directory import load_model
from model_ops.reinforcement.policy_loss import PolicyLoss
from model_ops.reinforcement.rft_settings import RftSettings
from model_ops.reinforcement.rollout_batches import LearntRollout, group_documents, nll_weight, rollout_batches
from tests.model_ops.test_rft import rollout, run, start  # noqa: F401


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
        start, tmp_path / "out", steps=3, temperature_end=0.5, max_new_tokens=6, max_new_tokens_start=2, nll=0.1,
        held_out_prompts=2, held_out_answers=2,
    )  # fmt: skip
    rounds = [each for each in seen if each != (1.0, 6)]
    assert rounds == [(1.0, 2), (0.75, 4), (0.5, 6)] and seen[0] == seen[-1] == (1.0, 6), "held-out answers are sampled alike"
    lines = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert all(line["canary_gap"] < 1e-4 for line in lines), "the loss divides by the temperature of the round"
    rows = pq.read_table(tmp_path / "out/rollouts.parquet").to_pylist()
    longest = [max(row["tokens"] for row in rows if row["step"] == step) for step in range(3)]
    assert longest[0] == 2 and np.all(np.array(longest) <= [2, 4, 6])

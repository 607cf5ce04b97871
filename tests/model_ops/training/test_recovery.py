"""Steps that go wrong: stopped or skipped by policy, rows named, weights and moments untouched, the same after a resume."""

import json
import math

import pytest
import torch
from torch import nn

from model_ops.jobs.job import ModelError, Progress, Stopped
from model_ops.parallel.world import World
from model_ops.tensors.batch import Batch, one_term
from model_ops.training import recovery as module
from model_ops.training.optimizers import build_optimizer
from model_ops.training.recovery import SKIPS_IN_A_ROW, Recovery
from model_ops.training.settings import TrainingSettings
from model_ops.training.step import optimizer_step
from model_ops.training.trainer import train
from tests.thorough_cases import thorough_except

ALONE = World.alone(torch.device("cpu"))


def settings(**changes):
    values = {"steps": 40, "learning_rate": 1e-3, "checkpoint_every": 5, "precision": "float32", **changes}
    return TrainingSettings(**values).resolved()


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.full((3, 3), 0.5))


class Plan:
    """Weights say by how much a step's loss is multiplied."""

    def __init__(self, steps, factors):
        self.steps, self.factors = steps, factors

    def __len__(self):
        return self.steps

    def step(self, index, rank=0, ranks=1):
        ids = torch.arange(4)
        factors = [1.0, self.factors.get(index, 1.0)]
        return [Batch(ids, ids, ids, torch.full((4,), factor), [4], [f"row-{index}-{k}"]) for k, factor in enumerate(factors)]


def loss(model, batch):
    return one_term((model.slope.square() * batch.weights[0]).sum() * 4, 4.0)


class Heard(Progress):
    def __init__(self, stop=None):
        super().__init__()
        self.warnings, self.stop, self.losses = [], stop, []

    def event(self, name, **fields):
        if name == "warning":
            self.warnings.append(fields["message"])

    def report(self, phase, done, total, unit, **numbers):
        self.stop_requested = done == self.stop
        self.losses.append(numbers.get("loss"))


def run(folder, factors, heard=None, **changes):
    chosen = settings(**changes)
    model = Line()
    return model, train(model, Plan(chosen.steps, factors), loss, chosen, folder / ".work", heard or Heard(), "line")


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_step_that_is_not_finite_is_skipped_and_leaves_weights_and_moments(bad):
    model, chosen = Line(), settings(on_bad_step="skip")
    optimizer = build_optimizer(model, chosen)
    heard = Heard()
    recovery = Recovery(chosen, ALONE, heard)
    plan = Plan(3, {1: bad})
    optimizer_step(model, plan.step(0), loss, optimizer, chosen, ALONE, "step 0", recovery)
    weights = model.slope.detach().clone()
    state = {key: value.clone() for key, value in optimizer.state[model.slope].items()}
    numbers = optimizer_step(model, plan.step(1), loss, optimizer, chosen, ALONE, "step 1", recovery)
    assert numbers["skipped"] == 1 and recovery.skipped == 1
    assert torch.equal(weights, model.slope) and model.slope.grad is None
    assert all(torch.equal(value, optimizer.state[model.slope][key]) for key, value in state.items())
    assert len(heard.warnings) == 1 and "row-1-1" in heard.warnings[0] and "row-1-0" not in heard.warnings[0]


def test_a_gradient_that_is_not_finite_is_told_from_a_loss(tmp_path):
    class Steep(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient * math.nan

    def steep(model, batch):
        return one_term(Steep.apply(model.slope).sum(), 4.0)

    with pytest.raises(ModelError, match=r"line step 0: the gradient is not a finite number on rows row-0-0, row-0-1"):
        train(Line(), Plan(3, {}), steep, settings(steps=3), tmp_path / ".work", Heard(), "line")


def test_a_run_that_stopped_at_a_bad_step_may_go_on_skipping_it(tmp_path):
    with pytest.raises(ModelError, match="or set on_bad_step: skip"):
        run(tmp_path, {12: math.nan})
    _, result = run(tmp_path, {12: math.nan}, on_bad_step="skip")
    assert result.resumed_from == 10 and result.skipped_steps == 1


def test_skipped_steps_are_counted_logged_and_no_loss(tmp_path):
    heard = Heard()
    _, result = run(tmp_path, {3: math.nan, 9: math.nan}, heard, on_bad_step="skip")
    assert result.skipped_steps == 2 and math.isfinite(result.loss)
    found = lines(tmp_path)
    assert [line["step"] for line in found if line.get("skipped")] == [4, 10]
    assert found[3]["loss"] is None and found[4]["loss"] > 0
    assert heard.losses[3] is None and len(heard.warnings) == 2


def test_many_skips_on_end_stop_the_run(tmp_path):
    with pytest.raises(ModelError, match="10th step in a row"):
        run(tmp_path, dict.fromkeys(range(5, 40), math.nan), on_bad_step="skip")
    fewer = dict.fromkeys(range(5, 4 + SKIPS_IN_A_ROW), math.nan)
    assert run(tmp_path / "b", fewer, on_bad_step="skip")[1].skipped_steps == SKIPS_IN_A_ROW - 1


def test_a_spike_is_named_and_by_default_trained_on(tmp_path):
    heard = Heard()
    spiked, result = run(tmp_path / "a", {30: 1e3}, heard)
    ignored, _ = run(tmp_path / "b", {30: 1e3}, on_spike="ignore")
    assert result.skipped_steps == 0 and torch.equal(spiked.slope, ignored.slope)
    assert len(heard.warnings) == 1
    assert "line step 30: loss" in heard.warnings[0] and "row-30-1" in heard.warnings[0] and "grad_norm" in heard.warnings[0]


def test_a_spike_can_be_skipped_or_stop_the_run(tmp_path):
    model, result = run(tmp_path / "a", {30: 1e3}, on_spike="skip")
    assert result.skipped_steps == 1
    plain, _ = run(tmp_path / "b", {30: math.nan}, on_bad_step="skip")
    assert torch.equal(model.slope, plain.slope)
    with pytest.raises(ModelError, match=r"line step 30: .*above.*row-30-0.*on_spike: skip"):
        run(tmp_path / "c", {30: 1e3}, on_spike="stop")


def test_no_early_step_and_no_falling_loss_is_a_spike_and_a_new_level_is_accepted(monkeypatch):
    monkeypatch.setattr(module, "SPIKE_WINDOW", 30)
    heard = Heard()
    recovery = Recovery(settings(on_spike="skip"), ALONE, heard)
    assert all(recovery.takes("s", value, 1.0, list) for value in [9.0, 30.0, *[8.0 - 0.2 * k for k in range(30)]])
    assert not recovery.takes("s", 60.0, 1.0, list)
    recovery = Recovery(settings(on_spike="warn"), ALONE, heard)
    for value in [2.0] * 30 + [9.0] * 16:
        recovery.takes("s", value, 1.0, list)
    before = len(heard.warnings)
    recovery.takes("s", 9.0, 1.0, list)
    assert len(heard.warnings) == before, "after half a window the new level is the usual one"


@pytest.mark.parametrize("stop", thorough_except([26], [24, 26, 33]))
def test_a_resumed_run_judges_as_the_undisturbed_one(tmp_path, stop):
    factors = {8: math.nan, 25: 1e3, 32: 1e3}
    policy = {"on_bad_step": "skip", "on_spike": "skip"}
    whole, straight = run(tmp_path / "whole", factors, **policy)
    with pytest.raises(Stopped):
        run(tmp_path / "cut", factors, Heard(stop=stop), **policy)
    model, resumed = run(tmp_path / "cut", factors, **policy)
    assert resumed.resumed_from == stop and resumed.skipped_steps == straight.skipped_steps == 3
    assert torch.equal(whole.slope, model.slope)
    kept = [[(line["step"], line["loss"], line.get("skipped")) for line in lines(tmp_path / name)] for name in ("whole", "cut")]
    assert kept[0] == kept[1]

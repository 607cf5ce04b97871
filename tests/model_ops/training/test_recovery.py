"""Steps that go wrong: stopped or skipped by policy, rows named, weights and moments untouched, the same after a resume."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from model_ops.documents.documents import Branch, Document, Documents, prefix_tokens
from model_ops.documents.packing import PackedPlan
from model_ops.jobs import ModelError, Progress, Stopped
from model_ops.parallel.world import World
from model_ops.tensors.batch import IGNORED, Batch, one_term
from model_ops.training import TrainingSettings
from model_ops.training import recovery as module
from model_ops.training.optimizers import build_optimizer
from model_ops.training.recovery import SKIPS_IN_A_ROW, Recovery
from model_ops.training.step import optimizer_step
from model_ops.training.trainer import dry_run, train
from tests.thorough_cases import thorough_except

CPU = torch.device("cpu")


class Noisy(nn.Module):
    """Draws random numbers and counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(50, 12)
        self.head = nn.Linear(12, 50)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, ids):
        self.calls += 1
        return self.head(nn.functional.dropout(self.embed(ids), 0.3, self.training))


def loss_of(model, batch):
    kept = batch.labels != IGNORED
    losses = nn.functional.cross_entropy(model(batch.input_ids)[kept], batch.labels[kept], reduction="sum")
    return one_term(losses * (1 + torch.rand(())), kept.sum())


def chosen(**values):
    return TrainingSettings(
        **{
            "steps": 5,
            "max_length": 64,
            "tokens_per_step": 192,
            "learning_rate": 1e-2,
            "precision": "float32",
            "micro_batch_tokens": 64,
            "checkpoint_every": 2,
            **values,
        }
    ).resolved()


def a_plan(settings, lengths=(60, 31, 20, 9, 44, 17, 50, 3, 40)):
    rng = np.random.default_rng(1)
    return PackedPlan(
        [Document(f"row-{i}", rng.integers(0, 50, length), np.ones(length, bool)) for i, length in enumerate(lengths)], settings
    )


def test_losses_are_the_same_to_the_bit_with_and_without_it(tmp_path):
    weights, losses = [], []
    for tried in (True, False):
        torch.manual_seed(9)
        model, settings = Noisy(), chosen(dry_run=tried)
        train(model, a_plan(settings), loss_of, settings, tmp_path / str(tried) / ".work", Progress(), "toy")
        weights.append({name: value.clone() for name, value in model.state_dict().items()})
        losses.append(
            [
                line.split('"loss": ')[1].split(",")[0]
                for line in (tmp_path / str(tried) / "metrics.jsonl").read_text().splitlines()
            ]
        )
    assert losses[0] == losses[1] and len(losses[0]) == 5
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


def test_it_leaves_weights_gradients_buffers_generators_and_optimizer_as_they_were():
    model, settings = Noisy(), chosen()
    optimizer = build_optimizer(model, settings)
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    model.eval()
    batch = dry_run(model, a_plan(settings), loss_of, optimizer, settings, World.alone(CPU))
    assert batch.tokens == 64 or batch.tokens == max(a_plan(settings).row_tokens)
    assert torch.equal(torch.get_rng_state(), state) and not model.training and not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
        MemoryError(),
    ],
)
def test_what_does_not_fit_is_named_with_the_remedy(error, tmp_path):
    model, settings = Noisy(), chosen()

    def too_much(model, batch):
        raise error

    with pytest.raises(ModelError, match=r"heaviest micro-batch \(6\d tokens, \d+ of them targets.*lower micro_batch_tokens"):
        train(model, a_plan(settings), too_much, settings, tmp_path / ".work", Progress(), "toy")
    assert not (tmp_path / "metrics.jsonl").exists() or not (tmp_path / "metrics.jsonl").read_text()


def test_an_error_of_another_kind_is_not_taken_for_memory():
    def broken(model, batch):
        raise RuntimeError("shapes do not match")

    model, settings = Noisy(), chosen()
    with pytest.raises(RuntimeError, match="shapes do not match"):
        dry_run(model, a_plan(settings), broken, build_optimizer(model, settings), settings, World.alone(CPU))


def test_a_run_that_continues_does_not_try_again_and_may_turn_it_off(tmp_path):
    model, calls = Noisy(), []

    def counted(model, batch):
        calls.append(batch.tokens)
        return loss_of(model, batch)

    for tried, steps in ((True, 5), (False, 5)):
        settings = chosen(dry_run=tried)
        calls.clear()
        train(model, a_plan(settings), counted, settings, tmp_path / ".work", Progress(), "toy")
        if tried:
            assert len(calls) == 1 + sum(len(a_plan(settings).step(index)) for index in range(steps))
    assert len(calls) == len(a_plan(chosen()).step(4))  # checkpoint_every=2: the fifth step was not saved


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_the_heaviest_micro_batch_is_one_of_the_plan_and_none_has_more_tokens(ranks):
    settings = chosen(tokens_per_step=384, max_length=100, micro_batch_tokens=200, steps=6)
    plan = a_plan(settings, lengths=[7 + 13 * i % 90 for i in range(40)])
    for rank in range(ranks):
        found = plan.heaviest(rank, ranks)
        mine = [batch for index in range(6) for batch in plan.step(index, rank, ranks) if batch.row_ids]
        assert any(batch.row_ids == found.row_ids for batch in mine) or (not mine and not found.row_ids)
        assert found.tokens * 1.125 >= max((batch.tokens for batch in mine), default=0)


def test_of_equally_long_micro_batches_the_one_with_more_targets_and_then_the_longer_document_is_heavier():
    def documents(*kinds):
        return [
            Document(f"row-{i}", np.arange(length), np.arange(length) >= length - targets)
            for i, (length, targets) in enumerate(kinds)
        ]

    settings = chosen(max_length=64, tokens_per_step=64, steps=3)
    assert PackedPlan(documents((64, 5), (64, 60), (64, 9)), settings).heaviest().row_ids == ["row-1"]
    found = PackedPlan(documents((64, 20), (32, 10), (32, 10)), chosen(max_length=64, tokens_per_step=64, steps=2)).heaviest()
    assert found.row_ids == ["row-0"]


def test_of_equally_long_micro_batches_the_one_whose_branches_continue_longer_beginnings_is_heavier():
    def document(name, *branches):
        return Document(name, np.arange(64), np.arange(64) >= 60, branches=tuple(Branch(*branch) for branch in branches))

    documents = [document("plain"), document("late", (40, 8), (40, 8)), document("early", (4, 8), (4, 8))]
    settings = chosen(max_length=64, tokens_per_step=64, steps=3)
    assert prefix_tokens(documents).tolist() == [0, 80, 8]
    assert PackedPlan(documents, settings).heaviest().row_ids == ["late"]
    assert PackedPlan(Documents.gather(documents), settings).heaviest().row_ids == ["late"]


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

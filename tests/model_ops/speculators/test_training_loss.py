"""The trainer's loss of a drafter: step weights, the loss against its plain sum, and what it tells while training."""

from __future__ import annotations

import json
import math

import pytest
import torch
from pydantic import ValidationError
from stop_after import StopAfter
from tiny_models import tiny_model

from model_ops.decoding.incremental import IncrementalModel
from model_ops.jobs import Progress, Stopped
from model_ops.speculators.decoder_config import Eagle3Config
from model_ops.speculators.eagle3.network import Eagle3
from model_ops.speculators.factory import new_draft_model
from model_ops.speculators.losses.chain_loss import Teacher
from model_ops.speculators.losses.speculator_losses import expected_acceptance_length
from model_ops.speculators.losses.training_loss import SpeculatorLoss
from model_ops.speculators.registry import speculator_settings
from model_ops.speculators.states.hidden_states import AnswerRow, OnlineStates
from model_ops.speculators.states.speculator_batches import SpeculatorPlan, documents_of, make_batch, supervised
from model_ops.training.trainer import train
from tests.model_ops.speculators.defined_losses import acceptance, speculator_loss

pytestmark = pytest.mark.xdist_group("training loss")

STEPS = 3


class DrawnStates:
    """Stands for the cache of hidden states."""

    def __init__(self, rows, hidden):
        self.rows = [(torch.randn(len(row.ids), 3 * hidden), torch.randn(row.window + 1, hidden)) for row in rows]

    def of(self, members):
        return [self.rows[row] for row in members]


@pytest.fixture
def material():
    torch.manual_seed(0)
    target = tiny_model(layers=8)
    model = Eagle3(Eagle3Config.for_target(target.config, 40))
    ids = torch.randperm(96)[:40].sort().values
    model.set_draft_vocabulary(ids)
    model.warm_start(target.get_input_embeddings().weight, target.lm_head.weight, target.model.norm.weight)
    rows = [
        AnswerRow(str(n), torch.randint(0, 96, (prompt + answer,)).tolist(), prompt)
        for n, (prompt, answer) in enumerate([(5, 9), (7, 4), (2, 12)])
    ]
    batch = make_batch(rows, DrawnStates(rows, 32), [0, 1, 2])
    return model, Teacher(target.lm_head.weight, ids), rows, batch


@pytest.mark.parametrize("loss", ["kl", "lk_lambda", "lk_alpha", "tv", "cross_entropy"])
def test_the_loss_is_the_weighted_sum_over_steps(material, loss):
    model, teacher, rows, batch = material
    settings = speculator_settings(
        ttt_steps=STEPS, loss=loss, eta=2.0, lambda_of="position", step_weights=[1.0, 0.25, 0.5]
    ).resolved()
    found = SpeculatorLoss(teacher, settings)(model, batch)
    p = (batch.last.float() @ teacher.head.T).softmax(-1)[:, teacher.target_ids]
    labels = torch.cat([torch.tensor(row.ids[row.prompt_tokens :]) for row in rows])
    assert len(labels) == len(p) == found.terms["loss"].count == 25
    drafted = {int(target): draft for draft, target in enumerate(teacher.target_ids)}
    labels = torch.tensor([drafted.get(int(label), -1) for label in labels])
    total, alphas = 0, []
    for weight, hidden, step in zip([1.0, 0.25, 0.5], model.unroll(documents_of(batch), STEPS), range(STEPS), strict=True):
        entries, at = supervised(batch.windows, step)
        logits = model.logits(hidden.flatten(0, 1)[entries])
        total = total + weight * speculator_loss(loss, logits, p[at], labels[at], 2.0).sum()
        alphas.append(acceptance(logits, p[at]).detach())
    torch.testing.assert_close(found.terms["loss"].sum, total)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for one, other in zip(
        torch.autograd.grad(found.terms["loss"].sum, weights), torch.autograd.grad(total, weights), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    means = {name: float(mean.sum) / mean.count for name, mean in found.metrics.items()}
    for step, alpha in enumerate(alphas):
        assert means[f"alpha_{step}"] == pytest.approx(float(alpha.mean()), rel=1e-4)
    assert means["draft_mass"] == pytest.approx(float(p.sum(-1).mean()), rel=1e-4) and means["alpha_0"] <= means["draft_mass"]
    # the chains that are whole: of answers of 9, 4 and 12 tokens those that begin two before the end, or earlier
    starts, chains = {0: 0, 1: 9, 2: 13}, []
    for row, first in starts.items():
        for entry in range(rows[row].window - 2):
            chains.append([alphas[step][first - step * row + entry] for step in range(STEPS)])
    assert len(chains) == 25 - 6
    expected = expected_acceptance_length(torch.tensor(chains)).mean()
    assert means["expected_tau"] == pytest.approx(float(expected), rel=1e-4)


def test_lambda_of_a_draft_step_follows_its_mean_alpha(material):
    """It begins as KL; after optimizer steps that told alphas, every position of draft k has exp(-eta of their running
    mean)."""
    model, teacher, _, batch = material
    losses = {
        kind: SpeculatorLoss(teacher, speculator_settings(ttt_steps=STEPS, loss=kind, step_decay=1.0).resolved())
        for kind in ("kl", "tv", "lk_lambda")
    }
    torch.testing.assert_close(
        losses["lk_lambda"](model, batch).terms["loss"].sum, losses["kl"](model, batch).terms["loss"].sum
    )
    for loss in losses.values():
        loss.after_step({"alpha_0": 0.5, "alpha_1": 0.25, "alpha_2": float("nan"), "loss": 3.0})
        loss.after_step({"alpha_0": 0.7, "alpha_1": 0.35})
    assert losses["lk_lambda"].state() == {"alphas": pytest.approx([0.115, 0.0575, 0.0])}
    shares = [math.exp(-3 * alpha) for alpha in (0.115, 0.0575, 0.0)]
    of_step = {kind: [_of_step(losses[kind], model, batch, step) for step in range(STEPS)] for kind in losses}
    for share, kl, tv, mixed in zip(shares, of_step["kl"], of_step["tv"], of_step["lk_lambda"], strict=True):
        torch.testing.assert_close(mixed, share * kl + (1 - share) * tv)
    resumed = SpeculatorLoss(teacher, losses["lk_lambda"].settings)
    resumed.resume(json.loads(json.dumps(losses["lk_lambda"].state())))
    torch.testing.assert_close(
        resumed(model, batch).terms["loss"].sum, losses["lk_lambda"](model, batch).terms["loss"].sum, rtol=0, atol=0
    )


def _of_step(loss, model, batch, step):
    weights = [float(place == step) for place in range(STEPS)]
    alone = SpeculatorLoss(loss.teacher, loss.settings.model_copy(update={"step_weights": weights}))
    alone.resume(loss.state())
    return alone(model, batch).terms["loss"].sum


@pytest.mark.slow
def test_a_stopped_training_goes_on_with_the_lambdas_it_had(material, tmp_path):
    """Weights to the bit, of a run that was stopped and one that was not; without the lambdas they would differ."""
    _, teacher, rows, _ = material
    settings = speculator_settings(
        ttt_steps=STEPS, loss="lk_lambda", steps=12, tokens_per_step=64, max_length=64, checkpoint_every=4
    ).resolved()

    states = DrawnStates(rows, 32)

    def trained(work, progress):
        torch.manual_seed(0)
        target = tiny_model(layers=8)
        model = Eagle3(Eagle3Config.for_target(target.config, 40))
        model.set_draft_vocabulary(teacher.target_ids)
        model.warm_start(target.get_input_embeddings().weight, target.lm_head.weight, target.model.norm.weight)
        plan, loss = SpeculatorPlan(rows, states, settings), SpeculatorLoss(teacher, settings)
        train(model, plan, loss, settings, work, progress, "speculator")
        return model.state_dict(), loss.state()

    whole, alphas = trained(tmp_path / "whole" / "work", Progress())
    with pytest.raises(Stopped):
        trained(tmp_path / "stopped" / "work", StopAfter(6))
    again, resumed = trained(tmp_path / "stopped" / "work", Progress())
    assert resumed == alphas and all(alpha > 0 for alpha in alphas["alphas"])
    assert all(torch.equal(whole[name], again[name]) for name in whole)


@pytest.mark.parametrize(
    "own", [{"architecture": "eagle3"}, {"architecture": "dflash", "num_speculative_tokens": 5, "anchors": 16}]
)
@pytest.mark.slow
def test_the_heaviest_micro_batch_keeps_most_for_the_backward_pass(own):
    """Of micro-batches of as many tokens: one long prompt, two long answers, eight short answers, eight longer prompts."""
    runner = IncrementalModel(tiny_model(layers=8, max_position_embeddings=1_024))
    shapes = [(480, 32), *[(8, 240)] * 2, *[(2, 60)] * 8, *[(50, 12)] * 8]
    rows = [AnswerRow(str(n), [3 + n] * (prompt + answer), prompt) for n, (prompt, answer) in enumerate(shapes)]
    settings = speculator_settings(num_layers=1, steps=1, tokens_per_step=2_000, micro_batch_tokens=512, **own).resolved()
    model = new_draft_model(settings, runner, torch.arange(96))
    plan = SpeculatorPlan(rows, OnlineStates(runner, rows, model.capture), settings)
    loss = SpeculatorLoss(Teacher(runner.head.weight, model.target_ids), settings)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}
    for batch in plan.step(0):
        held = {}

        def keep(tensor, held=held):
            storage = tensor.untyped_storage()
            held[storage.data_ptr()] = 0 if storage.data_ptr() in weights else storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss(model, batch)
        kept[sum(held.values())] = batch.row_ids
    assert len(kept) == 4 and plan.heaviest().row_ids == kept[max(kept)]


@pytest.mark.slow
def test_the_order_of_a_batch_is_its_steps_own(material):
    _, _, rows, _ = material
    plans = [
        SpeculatorPlan(
            rows,
            DrawnStates(rows, 32),
            speculator_settings(steps=3, tokens_per_step=64, learning_rate=1e-3, max_length=64, seed=seed).resolved(),
        )
        for seed in (0, 0, 1)
    ]
    orders = [[batch.order.tolist() for step in range(3) for batch in plan.step(step)] for plan in plans]
    assert orders[0] == orders[1] != orders[2] and orders[0][0] != orders[0][-1]
    assert all(sorted(order) == list(range(len(order))) for order in orders[0])


@pytest.mark.slow
def test_weights_of_steps_are_powers_or_those_given():
    assert speculator_settings(ttt_steps=3, step_decay=0.5).weights_of_steps(3) == [1.0, 0.5, 0.25]
    assert speculator_settings(ttt_steps=2, step_weights=[1, 0]).weights_of_steps(2) == [1.0, 0.0]
    for weights, why in (
        ([1.0], "one for each step"),
        ([1.0, -1.0], "greater than or equal to 0"),
        ([0.0, 0.0], "one for each step"),
    ):
        with pytest.raises(ValidationError, match=why):
            speculator_settings(ttt_steps=2, step_weights=weights)

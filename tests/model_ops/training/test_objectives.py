"""The trainer with other objectives: losses of several terms, streams of their own, sources of batches that have a state."""

import json
from dataclasses import dataclass, field, replace

import pytest
import torch
from stop_after import StopAfter
from torch import nn

from model_ops.jobs import ModelError, Progress, Stopped
from model_ops.parallel.world import World
from model_ops.tensors.batch import Batch, LossOutput, Mean
from model_ops.training import TrainingSettings, train
from model_ops.training.step import StepBatches, optimizer_step

WIDTH = 8


@dataclass(frozen=True, kw_only=True)
class ScoredBatch(Batch):
    """Tokens, some with an advantage, some with a reference log-probability: two terms count different positions."""

    advantages: torch.Tensor = field(metadata={"padding": 0})
    reference: torch.Tensor = field(metadata={"padding": 0})


class TwoTerms:
    def __call__(self, model, batch):
        found = model(batch.input_ids)
        policy, kl = self.masks(batch)
        distances = (found - batch.reference[:, None]).square().sum(-1)
        return LossOutput(
            {
                "policy": Mean(-(found.tanh().sum(-1) * batch.advantages)[policy].sum(), policy.sum()),
                "kl": Mean(distances[kl].sum(), kl.sum()),
            },
            {"seen": Mean(float(len(found)), 1.0)},
        )

    def counts(self, batch):
        policy, kl = self.masks(batch)
        return {"policy": policy.sum(), "kl": kl.sum()}

    @staticmethod
    def masks(batch):
        return batch.advantages != 0, batch.reference != 0


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Embedding(32, WIDTH), nn.Linear(WIDTH, WIDTH))


def scored(tokens, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(32, (tokens,), generator=generator)
    advantages = torch.randn(tokens, generator=generator) * (torch.rand(tokens, generator=generator) < 0.5)
    reference = torch.randn(tokens, generator=generator) * (torch.rand(tokens, generator=generator) < 0.3)
    return ScoredBatch(
        ids,
        torch.arange(tokens),
        ids,
        torch.ones(tokens),
        [tokens],
        [f"row-{seed}"],
        advantages=advantages,
        reference=reference,
    )


def settings(**changes):
    values = {"steps": 12, "learning_rate": 1e-2, "checkpoint_every": 3, "precision": "float32", "dry_run": False, **changes}
    return TrainingSettings(**values).resolved()


class KeepsGradients(torch.optim.SGD):
    def step(self, closure=None):
        self.seen = [parameter.grad.clone() for group in self.param_groups for parameter in group["params"]]


def step_of(model, batches, loss):
    optimizer = KeepsGradients(model.parameters(), lr=0.0)
    numbers = optimizer_step(
        model, batches, loss, optimizer, settings(gradient_clip=1e9), World.alone(torch.device("cpu")), "toy"
    )
    return numbers, optimizer.seen


def test_a_loss_of_two_terms_has_the_gradient_of_the_hand_made_sum():
    batches = [scored(tokens, seed) for tokens, seed in ((9, 0), (31, 1), (14, 2))]
    numbers, gradients = step_of(net(), batches, TwoTerms())
    model, loss = net(), TwoTerms()
    outputs = [loss(model, batch) for batch in batches]
    means = {
        term: sum(output.terms[term].sum for output in outputs) / sum(int(output.terms[term].count) for output in outputs)
        for term in ("policy", "kl")
    }
    for found, wanted in zip(gradients, torch.autograd.grad(sum(means.values()), list(model.parameters())), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
    assert numbers["loss_policy"] == pytest.approx(float(means["policy"].detach()), rel=1e-6)
    assert numbers["loss_kl"] == pytest.approx(float(means["kl"].detach()), rel=1e-6)
    assert numbers["loss"] == pytest.approx(numbers["loss_policy"] + numbers["loss_kl"])
    assert numbers["seen"] == pytest.approx(sum(batch.tokens for batch in batches) / 3)


def test_a_term_that_no_position_of_a_step_has_adds_nothing():
    batch = scored(20, 0)
    without = replace(batch, reference=torch.zeros(20))
    numbers, gradients = step_of(net(), [without], TwoTerms())
    assert numbers["loss"] == numbers["loss_policy"] and all(torch.isfinite(gradient).all() for gradient in gradients)


def test_several_terms_without_their_counts_are_refused():
    with pytest.raises(ModelError, match="terms policy, kl and no method counts"):
        step_of(net(), [scored(9, 0)], lambda model, batch: TwoTerms()(model, batch))


def test_counts_that_are_not_those_of_the_terms_are_refused():
    class Wrong(TwoTerms):
        def counts(self, batch):
            return {**super().counts(batch), "kl": torch.tensor(2)}

    with pytest.raises(ModelError, match="counts"):
        step_of(net(), [scored(31, 1)], Wrong())


class Rollouts:
    """A toy of on-policy sampling: what a step holds depends on the weights of the moment, a buffer and a generator."""

    def __init__(self, model, steps):
        self.model, self.steps = model, steps
        self.generator, self.buffer = torch.Generator().manual_seed(7), [1, 2, 3]

    def __len__(self):
        return self.steps

    def step(self, index, rank=0, ranks=1):
        with torch.no_grad():
            preferred = int(self.model(torch.tensor(self.buffer[-3:])).sum(0).argmax())
        self.buffer.append((preferred + int(torch.randint(32, (), generator=self.generator))) % 32)
        return [scored(10 + self.buffer[-1], sum(self.buffer))]

    def state(self):
        return {"buffer": self.buffer, "generator": self.generator.get_state().tolist()}

    def resume(self, state):
        self.buffer = list(state["buffer"])
        self.generator.set_state(torch.tensor(state["generator"], dtype=torch.uint8))


def run(folder, progress, loss=None, source=Rollouts):
    model = net()
    result = train(model, source(model, 12), loss or TwoTerms(), settings(), folder / ".work", progress, "toy")
    return model, result


def dies_at(step):
    """The loss, until a kill in the middle of that step: nothing is saved then."""
    calls = iter(range(step + 1))

    class Dying(TwoTerms):
        def __call__(self, model, batch):
            if next(calls) == step:
                raise KeyboardInterrupt
            return super().__call__(model, batch)

    return Dying()


def test_a_killed_run_with_a_stateful_source_ends_with_the_same_weights_bit_for_bit(tmp_path):
    straight, _ = run(tmp_path / "straight", Progress())
    with pytest.raises(Stopped):
        run(tmp_path / "disturbed", StopAfter(2))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "disturbed", Progress(), dies_at(6))  # steps 2 to 7: the checkpoint of step 6 is left
    disturbed, result = run(tmp_path / "disturbed", Progress())
    assert result.resumed_from == 6
    assert all(torch.equal(one, other) for one, other in zip(straight.parameters(), disturbed.parameters(), strict=True))
    lines = [json.loads(line) for line in (tmp_path / "disturbed" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 12 and {"loss", "loss_policy", "loss_kl", "seen"} <= lines[0].keys()


def test_without_its_state_the_continued_run_would_be_another(tmp_path):
    """The test above can fail: what a source forgets shows in the weights."""

    class Forgets(Rollouts):
        def resume(self, state):
            pass

    straight, _ = run(tmp_path / "straight", Progress(), source=Forgets)
    with pytest.raises(Stopped):
        run(tmp_path / "disturbed", StopAfter(5), source=Forgets)
    disturbed, _ = run(tmp_path / "disturbed", Progress(), source=Forgets)
    assert not torch.equal(straight[1].weight, disturbed[1].weight)


def test_a_stateful_source_is_never_asked_ahead_of_time():
    asked = []

    class Counts(Rollouts):
        def step(self, index, rank=0, ranks=1):
            asked.append(index)
            return super().step(index, rank, ranks)

    steps = StepBatches(Counts(net(), 3), World.alone(torch.device("cpu")), 0, ahead=True)
    steps.take(0)
    assert asked == [0]

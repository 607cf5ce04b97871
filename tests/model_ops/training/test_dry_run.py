"""The heaviest micro-batch is found, tried, and leaves no trace; where it does not fit, that is said before step 0."""

import numpy as np
import pytest
import torch
from torch import nn

from model_ops.documents.documents import Branch, Document, Documents, prefix_tokens
from model_ops.documents.packing import PackedPlan
from model_ops.jobs.job import ModelError, Progress
from model_ops.parallel.world import World
from model_ops.tensors.batch import IGNORED, one_term
from model_ops.training.dry_run import dry_run
from model_ops.training.optimizers import build_optimizer
from model_ops.training.settings import TrainingSettings
from model_ops.training.trainer import train

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

"""Pinned memory of checkpoints is made in a thread before the first one, as much as its copies take, and the first one waits for it."""

import threading

import pytest
import torch
from torch import nn

from model_ops.jobs.job import Progress
from model_ops.parallel.world import World
from model_ops.training import checkpoint, shards
from model_ops.training.checkpoint import Checkpoints
from model_ops.training.settings import TrainingSettings
from model_ops.training.shards import pin_ahead


class Pinned:
    """torch's allocations of pinned memory: thread and bytes of each. error: what they end with."""

    def __init__(self, monkeypatch, error=None):
        self.made, self.error, empty = [], error, torch.empty
        self.go = threading.Event()
        self.go.set()

        def allocate(*sizes, pin_memory=False, **options):
            if not pin_memory:
                return empty(*sizes, **options)
            self.go.wait(10)
            if self.error is not None:
                raise self.error
            self.made.append((threading.current_thread().name, *sizes))
            return empty(0)

        monkeypatch.setattr(shards.torch, "empty", allocate)


@pytest.fixture
def on_a_device(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)


TENSORS = {"a": torch.zeros(100), "b": torch.zeros(1_000, dtype=torch.bfloat16), "c": torch.zeros(3)}


@pytest.mark.parametrize(
    ("host_bytes", "sizes"), [(1 << 20, [16, 2_048, 512]), (2_064, [16, 2_048]), (2_063, [16]), (15, []), (600, [16])]
)
def test_as_much_is_pinned_as_the_copies_take_last_tensors_first(monkeypatch, on_a_device, host_bytes, sizes):
    pinned = Pinned(monkeypatch)
    pin_ahead(TENSORS, host_bytes).join()
    assert pinned.made == [("pinned memory", size) for size in sizes]


def test_tensors_of_a_cpu_need_none(monkeypatch):
    pinned = Pinned(monkeypatch)
    pin_ahead(TENSORS, 1 << 20).join()
    assert not pinned.made


def test_memory_that_cannot_be_pinned_ends_no_run(monkeypatch, on_a_device):
    pin_ahead(TENSORS, 1 << 20).join()  # this machine has no device, so torch refuses


class Copied(Exception):
    """Raised in the place of a snapshot."""


def checkpoints(tmp_path, **changes):
    model = nn.Linear(4, 4)
    values = {"steps": 12, "learning_rate": 1e-2, "checkpoint_every": 3, "precision": "float32", **changes}
    settings = TrainingSettings(**values).resolved()
    optimizer = torch.optim.AdamW(model.parameters())
    run = {"phase": "test", "settings": {}, "steps": settings.steps}
    return Checkpoints(tmp_path, model, optimizer, run, settings, World.alone(torch.device("cpu")), Progress(None))


def test_a_first_checkpoint_waits_for_the_thread_and_a_step_does_not(tmp_path, monkeypatch, on_a_device):
    pinned, seen = Pinned(monkeypatch), []
    pinned.go.clear()

    def snapshot(tensors, host_bytes):
        seen.append(list(pinned.made))
        raise Copied

    monkeypatch.setattr(checkpoint, "Snapshot", snapshot)
    with pytest.raises(Copied), checkpoints(tmp_path) as saving:
        assert not saving.after_step(1, {}) and not saving.after_step(2, {}) and not pinned.made
        threading.Timer(0.1, pinned.go.set).start()
        saving.after_step(3, {})
    assert [sum(size for _, size in made) for made in seen] == [64 + 16], "weight and bias, whole powers of two"


def test_a_run_without_a_planned_checkpoint_pins_nothing(tmp_path, monkeypatch, on_a_device):
    pinned = Pinned(monkeypatch)
    with checkpoints(tmp_path, checkpoint_every=13) as saving:
        assert saving._pinning is None
    assert not pinned.made

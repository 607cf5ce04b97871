"""Keeping less of the forward pass changes what a step holds, never what it computes."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import model_ops.models.attention  # noqa: F401  registers "packed"
from model_ops.documents.packing import Document, to_batch
from model_ops.families.loading import blocks_of
from model_ops.jobs import ModelError, Progress
from model_ops.objectives.sft import next_token_loss
from model_ops.parallel.world import World
from model_ops.training import TrainingSettings, activations, checkpoint, shards
from model_ops.training.activations import OffloadedInputs, checkpoint_activations
from model_ops.training.checkpoint import Checkpoints
from model_ops.training.shards import pin_ahead
from tests.model_ops.tiny_models import tiny_model


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


def packed_batch(lengths=(70, 33, 120), vocab=96):
    import numpy as np

    generator = np.random.default_rng(0)
    documents = [
        Document(f"row-{i}", generator.integers(3, vocab, length), np.ones(length, dtype=bool))
        for i, length in enumerate(lengths)
    ]
    return to_batch(documents)


def packed_model(model_type="qwen3", trained="full", layers=3, **changes):
    model = tiny_model(model_type, layers=layers, **changes).train()
    model.set_attn_implementation("packed")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained == "full" or ("adapter" in trained and "q_proj" in name))
    return model


def gradients(model, batch, precision=torch.bfloat16):
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", precision, enabled=precision is not torch.float32):
        output = next_token_loss(model, batch)
    output.terms["loss"].sum.backward()
    return output.terms["loss"].sum.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def kept_bytes(model, batch):
    """Bytes that autograd holds between forward and backward, each storage once, weights apart."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        next_token_loss(model, batch)
    return sum(size for size, _ in seen.values())


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("trained", ["full", "adapter in a frozen base"])
@pytest.mark.parametrize("kind", ["selective", "full"])
@pytest.mark.parametrize("model_type", ["qwen3", "llama"])
def test_same_loss_and_gradients_to_the_bit(model_type, kind, trained, precision):
    model, batch = packed_model(model_type, trained), packed_batch()
    loss, expected = gradients(model, batch, precision)
    assert checkpoint_activations(model, kind) is None
    again, found = gradients(model, batch, precision)
    assert torch.equal(loss, again)
    assert found.keys() == expected.keys()
    assert expected
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name


def test_a_mixture_of_experts_too():
    model = packed_model("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
    batch = packed_batch()
    loss, expected = gradients(model, batch)
    checkpoint_activations(model, "full")
    again, found = gradients(model, batch)
    assert torch.equal(loss, again)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def test_dropout_is_the_same_when_a_block_runs_again():
    model, batch = packed_model(attention_dropout=0.3), packed_batch()
    torch.manual_seed(5)
    _, expected = gradients(model, batch)
    checkpoint_activations(model, "full")
    torch.manual_seed(5)
    _, found = gradients(model, batch)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def test_less_is_kept():
    model, batch = packed_model(), packed_batch((200, 190, 180))
    everything = kept_bytes(model, batch)
    checkpoint_activations(model, "full")
    inputs = kept_bytes(model, batch)
    assert inputs < everything / 8
    checkpoint_activations(model, "none")
    assert kept_bytes(model, batch) == everything


def test_the_peak_of_a_step_falls_from_none_to_selective_to_full():
    from model_ops.planning.step_trace import LiveBytes

    batch = packed_batch((40, 35, 45, 50, 38))
    peaks = {}
    for kind in ("none", "selective", "full"):
        model = packed_model(layers=8, intermediate_size=128)
        checkpoint_activations(model, kind)
        with LiveBytes() as live:
            gradients(model, batch)
        peaks[kind] = live.peak
    assert peaks["selective"] < 0.75 * peaks["none"]
    assert peaks["full"] < 0.75 * peaks["selective"]


def test_names_of_weights_and_evaluation_stay_as_they_are():
    model, batch = packed_model(), packed_batch()
    names = list(model.state_dict())
    with torch.no_grad():
        expected = next_token_loss(model, batch).terms["loss"].sum
    checkpoint_activations(model, "full")
    assert list(model.state_dict()) == names
    with torch.no_grad():
        assert torch.equal(next_token_loss(model, batch).terms["loss"].sum, expected)


def test_offloaded_inputs_come_back_and_gradients_agree(monkeypatch):
    """The copies themselves, on the caller's own stream: what a CUDA device does beside the computation."""
    model, batch = packed_model(), packed_batch()
    _, expected = gradients(model, batch)
    moved = OffloadedInputs(None)
    kept = []
    put_away = moved._put_away
    monkeypatch.setattr(moved, "_put_away", lambda tensor: kept.append(tensor.numel()) or put_away(tensor))
    for block in blocks_of(model):
        block.forward = activations._Checkpointed(block, "full", moved)
    _, found = gradients(model, batch)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    assert kept.count(batch.tokens * 32) == 3, "one input a block"
    assert not moved._copies, "nothing stays behind after the backward pass"


def test_offload_says_where_it_does_nothing_and_what_it_needs():
    model = packed_model()
    assert "does nothing on this device" in checkpoint_activations(model, "full", offload=True)
    with pytest.raises(ModelError, match="set activation_checkpointing to full"):
        checkpoint_activations(model, "none", offload=True)


def test_a_model_without_blocks_is_refused_only_when_asked():
    model = nn.Sequential(nn.Linear(4, 4))
    assert checkpoint_activations(model, "none") is None
    with pytest.raises(ModelError, match="has no list of blocks"):
        checkpoint_activations(model, "full")


def test_blocks_are_the_layers_not_the_experts():
    model = packed_model("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
    assert len(blocks_of(copy.deepcopy(model))) == 3

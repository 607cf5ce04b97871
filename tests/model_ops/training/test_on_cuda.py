"""Training on CUDA against the same steps on a CPU: losses, deterministic mode, memory of each stage, one transfer a step.

Cases with the mark `gpu` need a device; the same functions run on a CPU in the other cases."""

import gc

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from model_ops.documents.packing import Document, PackedPlan
from model_ops.jobs import ModelError, Progress
from model_ops.machine import process
from model_ops.models import attention
from model_ops.objectives.sft import next_token_loss
from model_ops.operations.sft_settings import SftSettings
from model_ops.parallel.world import World
from model_ops.training.step import _on_the_host
from model_ops.training.step_meter import peak_memory_mb
from model_ops.training.trainer import deterministic_kernels, train

assert attention  # registers "packed"
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def trained(folder, device, steps=4, **changes):
    """(losses of metrics.jsonl's last tenth, weights) of a small model after some steps."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=97,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            intermediate_size=96,
            max_position_embeddings=128,
            attn_implementation="packed",
        )
    ).to(device)
    generator = np.random.default_rng(0)
    documents = [
        Document(f"row-{i}", generator.integers(0, 97, length, dtype=np.int32), np.ones(length, dtype=bool))
        for i, length in enumerate([40, 7, 23, 64, 12, 30] * 6)
    ]
    settings = SftSettings(
        **{"steps": steps, "learning_rate": 1e-3, "tokens_per_step": 128, "max_length": 64, "precision": "float32", **changes}
    ).resolved()
    result = train(
        model,
        PackedPlan(documents, settings),
        next_token_loss,
        settings,
        folder / ".work",
        Progress(None),
        "sft",
        world=World.alone(torch.device(device)),
    )
    return result, {name: value.detach().cpu() for name, value in model.named_parameters()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("precision", "allowed"), [("float32", 1e-3), ("bfloat16", 3e-2)])
@pytest.mark.parametrize(
    "memory",
    [
        {"activation_checkpointing": "full", "offload_activations": True},
        *(pytest.param(memory, marks=pytest.mark.slow) for memory in ({}, {"activation_checkpointing": "selective"})),
    ],
)
def test_losses_are_those_of_a_cpu_in_float32(tmp_path, device, precision, allowed, memory):
    plain, _ = trained(tmp_path / "plain", "cpu", dry_run=False)
    found, _ = trained(tmp_path / "found", device, precision=precision, **memory)
    assert abs(found.loss - plain.loss) < allowed * plain.loss


@pytest.mark.parametrize("device", DEVICES)
def test_deterministic_runs_end_with_the_same_bits(tmp_path, device):
    one, other = (trained(tmp_path / name, device, precision="bfloat16", deterministic=True)[1] for name in ("one", "other"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.are_deterministic_algorithms_enabled()


def test_deterministic_kernels_are_on_inside_the_block_only_and_only_for_cuda():
    with deterministic_kernels(True, torch.device("cuda")):
        assert torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    for wanted, device in ((False, "cuda"), (True, "cpu")):
        with deterministic_kernels(wanted, torch.device(device)):
            assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_operation_without_a_deterministic_kernel_is_named():
    with (
        pytest.raises(ModelError, match=r"put_.* does not have .*; set deterministic: false"),
        deterministic_kernels(True, torch.device("cuda")),
    ):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1), accumulate=False)
    assert not torch.are_deterministic_algorithms_enabled()


def test_numbers_of_a_step_keep_their_order_and_arrive_together(monkeypatch):
    transfers, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: transfers.append(self) or tolist(self))
    assert _on_the_host([torch.tensor(1.5), 2, torch.tensor([3.0], dtype=torch.float64), 4.5]) == [1.5, 2.0, 3.0, 4.5]
    assert len(transfers) == 1 and _on_the_host([1, 2.5]) == [1.0, 2.5]


def test_between_jobs_a_device_gets_its_memory_back_and_its_peak_begins_anew(monkeypatch):
    called = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: called.append(name))
    process.give_back_memory()
    assert called == ["empty_cache", "reset_peak_memory_stats"]


@pytest.mark.gpu
def test_on_cuda_the_peak_is_that_of_one_stage():
    held = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    before = peak_memory_mb(held.device)
    del held
    gc.collect()
    process.give_back_memory()
    assert before >= 256 and peak_memory_mb(torch.device("cuda")) < before - 200

"""Operations against hand numbers, batches made ahead, and what a step says of itself."""

import math
import time

import pytest
import torch

import model_ops.models.attention  # noqa: F401  registers "packed"
from model_ops.documents.packing import Document, PackedPlan, to_batch
from model_ops.machine.devices import peak_bf16_flops
from model_ops.parallel.world import World
from model_ops.training.settings import TrainingSettings
from model_ops.training.step import StepBatches
from model_ops.training.step_meter import MatrixWork, StepMeter, attention_widths, matrix_work, needed_flops
from tests.model_ops.tiny_models import tiny_model

CPU = World.alone(torch.device("cpu"))


def documents(count=12, vocab=96):
    import numpy as np

    generator = np.random.default_rng(1)
    return [Document(f"row-{i}", generator.integers(3, vocab, 20 + i), np.arange(20 + i) >= 10) for i in range(count)]


def plan():
    return PackedPlan(documents(), TrainingSettings(steps=5, learning_rate=1e-3, tokens_per_step=64, max_length=64).resolved())


def test_attention_of_families_whose_heads_or_layers_differ():
    """DeepSeek-V3: 128 heads of 128 + 64 for queries and keys, 128 for values. Hybrids: only some layers are quadratic."""
    from types import SimpleNamespace

    latent = SimpleNamespace(
        num_attention_heads=128,
        head_dim=64,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        num_hidden_layers=2,
    )
    assert attention_widths(latent) == ((128 * 160, None),) * 2
    hybrid = SimpleNamespace(
        num_attention_heads=4,
        head_dim=8,
        sliding_window=16,
        layer_types=["linear_attention", "conv", "sliding_attention", "full_attention"],
    )
    assert attention_widths(hybrid) == ((0, None), (0, None), (32, 16), (32, None))


def test_operations_of_llama_3_8b_as_the_field_counts_them():
    """7.5e9 matrix weights, 32 layers of width 4,096: 32 to 33 GF a token with adapters at 4,096 tokens, 51 GF full at
    8,192."""
    blocks, head = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336), 4096 * 128_256
    attention = ((4096, None),) * 32
    adapters = needed_flops(MatrixWork(0, blocks, head, False, attention), [4096], 4096) / 4096
    assert adapters == pytest.approx(4 * (blocks + head) + 6 * 32 * 4096 * 4096)
    assert 32e9 < adapters < 34e9
    full = needed_flops(MatrixWork(blocks, 0, head, True, attention), [8192], 8192) / 8192
    assert full == pytest.approx(51e9, rel=0.02)


def test_only_rows_with_a_label_meet_the_head_and_documents_do_not_meet_each_other():
    work = MatrixWork(trained=10, frozen=100, head=1_000, head_trained=True, attention=((8, None), (8, 4)))
    assert needed_flops(work, [6], 0) == 6 * (6 * 10 + 4 * 100) + 12 * 8 * (6 * 6 / 2) + 12 * 8 * (6 * 4 - 8)
    assert needed_flops(work, [6], 5) - needed_flops(work, [6], 0) == 5 * 6 * 1_000
    halves = needed_flops(work, [3, 3], 0)
    assert needed_flops(work, [6], 0) - halves == 12 * 8 * (18 - 9) + 12 * 8 * (16 - 9)


def test_matrices_of_a_model_counted_by_hand():
    model = tiny_model("qwen3", layers=2, tied=False).requires_grad_(True)
    work = matrix_work(model)
    block = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48
    assert (work.trained, work.frozen) == (2 * block, 0)
    assert (work.head, work.head_trained) == (96 * 32, True)
    assert work.attention == ((32, None), (32, None))
    model.requires_grad_(False)
    model.model.layers[1].mlp.requires_grad_(True)
    assert matrix_work(model).trained == 3 * 32 * 48
    assert matrix_work(model).frozen == 2 * block - 3 * 32 * 48


def test_of_many_experts_a_token_meets_few():
    one = matrix_work(tiny_model("qwen3_moe", layers=2, num_experts=4, num_experts_per_tok=1, moe_intermediate_size=24))
    two = matrix_work(tiny_model("qwen3_moe", layers=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24))
    assert two.frozen - one.frozen == 2 * 3 * 32 * 24


def test_windows_of_layers():
    model = tiny_model("gemma3_text", layers=6, sliding_window=16)
    heads = model.config.num_attention_heads * model.config.head_dim
    assert attention_widths(model.config) == tuple((heads, window) for window in (16, 16, 16, 16, 16, None))
    whole = tiny_model("gemma3_text", layers=6, sliding_window=16, layer_types=["full_attention"] * 6)
    assert [window for _, window in attention_widths(whole.config)] == [None] * 6


def test_a_module_that_is_no_language_model_has_no_utilisation():
    assert matrix_work(torch.nn.Linear(3, 3)) is None


@pytest.mark.parametrize("ahead", [False, True])
def test_batches_made_ahead_are_the_same_batches(ahead):
    whole = plan()
    steps = StepBatches(whole, CPU, first=1, ahead=ahead)
    for index in range(1, 5):
        data = steps.take(index)
        expected = whole.step(index)
        assert [batch.row_ids for batch in data.batches] == [batch.row_ids for batch in expected]
        assert data.tokens == sum(batch.tokens for batch in expected)
        assert data.target_tokens == sum(int((batch.labels != -100).sum()) for batch in expected)
        assert sum(data.document_lengths) == data.tokens


def test_a_plan_that_fails_ahead_fails_the_step_that_takes_it():
    class Broken:
        def __len__(self):
            return 3

        def step(self, index, rank=0, ranks=1):
            if index == 1:
                raise ValueError("row 7 is gone")
            return [to_batch(documents(2))]

    steps = StepBatches(Broken(), CPU, first=0, ahead=True)
    assert steps.take(0).tokens == 41
    with pytest.raises(ValueError, match="row 7 is gone"):
        steps.take(1)


def test_waiting_is_hidden_when_batches_are_made_ahead():
    class Slow:
        def __len__(self):
            return 3

        def step(self, index, rank=0, ranks=1):
            time.sleep(0.2)
            return [to_batch(documents(2))]

    waited = {}
    for ahead in (False, True):
        steps = StepBatches(Slow(), CPU, first=0, ahead=ahead)
        steps.take(0)
        time.sleep(0.4)  # the step computes
        waited[ahead] = steps.take(1).waited_s
    assert waited[False] >= 0.2
    assert waited[True] < 0.1


def test_a_step_s_numbers():
    model = tiny_model("qwen3", layers=2).requires_grad_(True)
    data = StepBatches(plan(), CPU, first=0).take(0)
    numbers = StepMeter(model, CPU, "bfloat16", peak_flops=1e9).numbers(data, seconds=2.0)
    flops = needed_flops(matrix_work(model), data.document_lengths, data.target_tokens)
    assert numbers["mfu"] == pytest.approx(flops / 2e9, abs=1e-4)
    assert numbers["mfu"] > 0.001
    assert numbers["tokens_per_second"] == round(data.tokens / 2)
    assert 0 <= numbers["data_wait_share"] < 1
    assert "mfu" not in StepMeter(model, CPU, "bfloat16").numbers(data, 2.0), "nobody knows this CPU's peak"


def test_silent_batches_count_for_nothing():
    class Silent:
        def __len__(self):
            return 1

        def step(self, index, rank=0, ranks=1):
            batch = to_batch(documents(2))
            return [batch, batch.silenced()]

    data = StepBatches(Silent(), CPU, first=0).take(0)
    assert len(data.batches) == 2
    assert data.tokens == data.batches[0].tokens


def test_peaks_by_the_driver_s_name():
    assert peak_bf16_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_bf16_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_bf16_flops("NVIDIA A100-SXM4-40GB") == 312e12
    assert peak_bf16_flops("Radeon of tomorrow") is None
    assert math.isclose(peak_bf16_flops("NVIDIA GeForce RTX 4090"), 165e12)

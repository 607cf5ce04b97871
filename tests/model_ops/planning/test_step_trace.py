"""Memory of steps that are never computed, against steps that are."""

import gc

import pytest
import torch
from transformers import AutoConfig

import model_ops.models.attention
from model_ops.documents.packing import Document, to_batch
from model_ops.losses import head
from model_ops.objectives.sft import next_token_loss
from model_ops.planning.needs import Training, count_weights, needs_of
from model_ops.planning.step_trace import LiveBytes, TraceSettings, trace_micro_batch
from model_ops.tensors import fused_rows, torch_internals, use_memory_efficient_layers
from model_ops.training.activations import checkpoint_activations
from tests.model_ops.flash_by_definition import FlashByDefinition
from tests.model_ops.tiny_models import tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("step trace")]

SHAPE = {
    "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 1024, "eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None,
}  # fmt: skip


def measured(layers, tokens, length, checkpointing, attention="packed", **changes):
    """Live bytes at the worst moment of a real forward and backward pass, and at its end."""
    import numpy as np

    model = tiny_model("llama", layers=layers, **{**SHAPE, **changes}).requires_grad_(True).train()
    model.set_attn_implementation(attention)
    use_memory_efficient_layers(model)
    checkpoint_activations(model, checkpointing)
    generator = np.random.default_rng(0)
    vocab = changes.get("vocab_size", 96)
    batch = to_batch(
        [Document(f"r{i}", generator.integers(3, vocab, length), np.ones(length, dtype=bool)) for i in range(tokens // length)]
    )
    with torch.autocast("cpu", torch.bfloat16):  # indices that attention remembers exist before counting begins
        next_token_loss(model, batch).terms["loss"].sum.backward()
    model.zero_grad(set_to_none=True)
    gc.collect()
    with LiveBytes() as live:
        with torch.autocast("cpu", torch.bfloat16):
            loss = next_token_loss(model, batch).terms["loss"].sum
        loss.backward()
    return live.peak


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("layers", "vocab", "length"),
    [(7, 2_000, 64), *(pytest.param(*shape, marks=pytest.mark.thorough) for shape in ((3, 96, 128), (5, 500, 512)))],
)
def test_a_step_on_fake_tensors_takes_what_the_real_one_does(layers, vocab, length, checkpointing):
    tokens = 512
    config = AutoConfig.for_model("llama", num_hidden_layers=layers, vocab_size=vocab, tie_word_embeddings=True, **SHAPE)
    traced = trace_micro_batch(
        config, TraceSettings(tokens, tokens - tokens // length, checkpointing, device="cpu", document_tokens=length)
    )
    found = measured(layers, tokens, length, checkpointing, vocab_size=vocab)
    assert traced.peak(layers, accumulating=False) == pytest.approx(found, rel=0.06)


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_a_step_of_a_device_takes_what_its_own_code_does_on_real_tensors(monkeypatch, checkpointing):
    """The flash operators are computed by definition."""
    config = AutoConfig.for_model("llama", num_hidden_layers=3, vocab_size=96, tie_word_embeddings=True, **SHAPE)
    traced = trace_micro_batch(config, TraceSettings(512, 508, checkpointing, device="cuda", document_tokens=128))
    monkeypatch.setattr(fused_rows, "takes", lambda *_: False)
    monkeypatch.setattr(torch_internals, "device_kind", lambda *_: "cuda")  # streams are cast before the kernel
    monkeypatch.setattr(model_ops.models.attention, "takes_varlen_kernel", lambda *_: True)
    for table in (head.CHUNK_ELEMENTS, head.SOFTMAX_ELEMENTS):
        monkeypatch.setitem(table, "cpu", table["cuda"])
    monkeypatch.setattr(head, "ADDED_AT_ONCE", 1 << 30)
    with FlashByDefinition():
        found = measured(3, 512, 128, checkpointing, vocab_size=96)
    assert traced.peak(3, accumulating=False) == pytest.approx(found, rel=0.06)


def test_a_distilled_step_counts_the_distributions_of_the_teacher():
    config = AutoConfig.for_model("llama", num_hidden_layers=2, vocab_size=20_000, tie_word_embeddings=True, **SHAPE)
    plain, distilled = (trace_micro_batch(config, TraceSettings(256, 256, distilled=wanted)) for wanted in (False, True))
    logits = 4 * 256 * 20_000  # in float32, all of them in one chunk of a device
    assert 2 * logits < distilled.head - plain.head < 8 * logits


def test_kept_is_nearly_the_input_of_a_block_where_all_is_checkpointed():
    config = AutoConfig.for_model("llama", num_hidden_layers=4, vocab_size=96, **SHAPE)
    full = trace_micro_batch(config, TraceSettings(256, 256, "full"))
    assert full.saved == 256 * 64 * 4
    frozen = trace_micro_batch(config, TraceSettings(256, 256, "full", weights="bfloat16", adapter_rank=4))
    assert frozen.saved == 256 * 64 * 2
    everything = trace_micro_batch(config, TraceSettings(256, 256, "none"))
    # of attention queries, keys, values and output, and 4 log-sum-exps; of two norms what they read in float32, their output and
    # one number; gate, up, product
    of_attention, of_norms = 2 * (2 * 64 + 2 * 32) + 4 * 4, 2 * (64 * 4 + 64 * 2 + 4)
    assert everything.saved == pytest.approx(256 * (of_attention + of_norms + 3 * 160 * 2), rel=0.03)


def test_gradients_are_those_of_the_weights_that_are_trained():
    config = AutoConfig.for_model("llama", num_hidden_layers=4, vocab_size=96, tie_word_embeddings=False, **SHAPE)
    counts = count_weights(config, rank=4)
    full = trace_micro_batch(config, TraceSettings(64, 64))
    assert (full.block_gradients, full.outer_gradients) == (4 * counts.block, 4 * counts.outer)
    adapters = trace_micro_batch(config, TraceSettings(64, 64, weights="bfloat16", adapter_rank=4))
    assert (adapters.block_gradients, adapters.outer_gradients) == (4 * counts.adapters, 0)


def test_weights_are_counted_by_place():
    config = AutoConfig.for_model("llama", num_hidden_layers=4, vocab_size=96, tie_word_embeddings=False, **SHAPE)
    counts = count_weights(config, rank=4)
    linear = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160
    assert counts.block_linear == linear
    assert counts.block == linear + 2 * 64
    assert counts.outer == 2 * 96 * 64 + 64
    assert counts.adapters == 4 * (2 * 128 + 2 * 96 + 3 * 224)
    moe = AutoConfig.for_model(
        "qwen3_moe", num_hidden_layers=4, vocab_size=96, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, **SHAPE
    )
    assert count_weights(moe).experts == 8 * 3 * 64 * 32


def test_the_line_between_two_traces_agrees_with_a_trace():
    config = AutoConfig.for_model("llama", num_hidden_layers=4, vocab_size=96, **SHAPE)
    needs = needs_of(config, Training("full", 512, 4_096), "tiny")
    line = needs.trace(8_192, "none", 1)
    exact = trace_micro_batch(config, TraceSettings(8_192, 8_192, "none"))
    for name in ("saved", "forward", "head", "last", "first"):
        assert getattr(line, name) == pytest.approx(getattr(exact, name), rel=0.03), name


def test_operations_a_token_of_an_8b_model():
    llama = AutoConfig.for_model(
        "llama",
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        tie_word_embeddings=False,
    )
    assert needs_of(llama, Training("lora", 4_096, 65_536), "8B").flops_per_token == pytest.approx(33.5e9, rel=0.02)
    assert needs_of(llama, Training("full", 8_192, 65_536), "8B").flops_per_token == pytest.approx(51e9, rel=0.02)
    assert count_weights(llama).all == pytest.approx(8.03e9, rel=0.001)


@pytest.mark.parametrize("distilled", [False, True])
def test_two_chunks_of_the_head_trace_the_memory_of_all(monkeypatch, distilled):
    config = AutoConfig.for_model("llama", vocab_size=4_096, num_hidden_layers=3, **SHAPE)
    traced = TraceSettings(1_024, 1_024, distilled=distilled)
    monkeypatch.setitem(head.CHUNK_ELEMENTS, "cpu", 4_096 * 64)
    two = trace_micro_batch(config, traced)
    monkeypatch.setattr(head, "TRACED_CHUNKS", 100)
    assert trace_micro_batch(config, traced) == two

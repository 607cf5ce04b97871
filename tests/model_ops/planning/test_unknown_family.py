"""A family outside the table is allowed or refused by a trial on a small model of its config."""

import pytest
import torch
from transformers import AutoConfig

import model_ops.planning.trainable_family as trainable_family
import model_ops.planning.unknown_family as unknown_family
from model_ops.jobs import ModelError
from model_ops.models.attention import packed_attention
from model_ops.models.tiny_families import tiny_config
from model_ops.planning.shape_rates import ShapeRates, measure_shapes
from model_ops.planning.step_trace import TraceSettings, trace_micro_batch
from model_ops.planning.trainable_family import refuse_untrainable, small_config
from model_ops.planning.unknown_family import try_family
from model_ops.tensors import Boundaries, fused_rows
from model_ops.tensors.torch_internals import FakeTensorMode, device_kind, standing_for

SHAPE = {
    "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 96, "max_position_embeddings": 1024, "tie_word_embeddings": False, "eos_token_id": 2, "pad_token_id": 0,
    "bos_token_id": None,
}  # fmt: skip


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2)])
def test_query_key_value_output_and_log_sum_exp_are_kept(heads, kv_heads):
    tokens, head_dim, lengths = 48, 16, [30, 18]
    Boundaries.of(lengths, torch.device("cpu"))
    kept = {}

    def keep(tensor):
        if tensor.dtype in (torch.bfloat16, torch.float32) and tensor.numel():
            kept[id(tensor.untyped_storage())] = tensor.untyped_storage().nbytes()
        return tensor

    with FakeTensorMode(allow_non_fake_inputs=True), standing_for("cuda"):
        streams = [
            torch.zeros(1, count, tokens, head_dim, dtype=torch.bfloat16, requires_grad=True)
            for count in (heads, kv_heads, kv_heads)
        ]
        assert device_kind(streams[0]) == "cuda" and not fused_rows.takes(streams[0])
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output, _ = packed_attention(torch.nn.Module(), *streams, document_lengths=lengths)
        assert output.shape == (1, tokens, heads, head_dim) and output.dtype == torch.bfloat16
        gradients = torch.autograd.grad(output.float().sum(), streams)
        assert [gradient.shape for gradient in gradients] == [stream.shape for stream in streams]
    # FlashAttention-2: keys and values of their own heads, and the log-sum-exp in float32
    assert sum(kept.values()) == 2 * tokens * head_dim * (2 * heads + 2 * kv_heads) + 4 * tokens * heads
    assert device_kind(torch.zeros(1)) == "cpu"


@pytest.mark.parametrize("frozen", [False, True])
def test_a_block_of_a_device_keeps_what_its_kernels_need(frozen):
    """Counted by hand, for each token: inputs and outputs of products in bfloat16, sums that are normed in the dtype of the
    residual stream, one number of each norm, and what attention keeps."""
    config = AutoConfig.for_model("llama", num_hidden_layers=4, **SHAPE)
    rank, options = 4, {}
    if frozen:
        options = {"weights": "bfloat16", "adapter_rank": rank}
    kept = trace_micro_batch(config, TraceSettings(256, 256, "none", **options)).saved / 256
    stream = 2 if frozen else 4
    attention = 2 * (64 + 32 + 32 + 64) + 4 * 4  # queries, keys, values, output; log-sum-exps
    norms = 2 * (stream * 64 + 2 * 64 + 4)  # sums, outputs, scales
    mlp = 2 * 3 * 160  # gate, up, their product
    adapters = 2 * 7 * rank if frozen else 0
    assert kept == pytest.approx(attention + norms + mlp + adapters, rel=0.02)


@pytest.mark.parametrize("kind, rank", [("qwen3", 0), ("llama", 4)])
def test_a_small_model_is_measured_in_every_part(kind, rank):
    rates = measure_shapes(tiny_config(kind).to_dict(), "float32", rank)
    parts = rates._asdict()
    above = {
        name: each
        for name, each in parts.items()
        if name not in ("row_s", "round_s", "head_round_s", "head_row_s", "output_s", "column_s")
    }
    assert all(0 < each < 1 for each in above.values()), above
    assert rates.round_s + 64 * rates.row_s > 0 and rates.column_s + 64 * rates.output_s > 0
    assert rates.step_s > rates.forward_s


def test_assumed_rates_are_in_proportion_to_the_speed_of_products():
    slow, fast = (ShapeRates.assumed(gflops, 1e7, 1e8) for gflops in (50.0, 100.0))
    assert slow.forward_s == pytest.approx(2 * 1e7 / (0.35 * 50e9)) and slow.forward_s == 2 * fast.forward_s
    assert slow.head_row_s == 2 * fast.head_row_s and slow.round_s == fast.round_s


LARGE = {
    "vocab_size": 50_000, "hidden_size": 64, "num_hidden_layers": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 4_096, "max_position_embeddings": 4_096,
}  # fmt: skip


def config_of(name, **own):
    return AutoConfig.for_model(name, **{**LARGE, **own}).to_dict()


def test_a_family_whose_attention_goes_through_transformers_is_allowed():
    found = try_family(config_of("olmo"))
    assert (found.train, found.decode, found.quantize, found.tried) == (None, None, None, True)


def test_a_family_with_a_state_is_trained_document_by_document():
    assert try_family(config_of("stablelm")).train is None


@pytest.mark.parametrize(("name", "said"), [("mamba", "influence each other"), ("no_such_family", "transformers builds no")])
def test_what_cannot_be_trained_is_refused_in_one_sentence(name, said):
    config = config_of(name) if name == "mamba" else {**LARGE, "model_type": name}
    found = try_family(config)
    assert said in found.train and "\n" not in found.train


def test_decoding_that_differs_from_the_whole_row_is_refused(monkeypatch):
    runner = unknown_family.new_runner

    def forgetful(model):
        made = runner(model)
        whole = type(made).forward
        made.forward = lambda ids, cache, capture=(): whole(made, ids * 0 + 5, cache, capture)
        return made

    monkeypatch.setattr(unknown_family, "new_runner", forgetful)
    assert "gives other logits than without" in try_family(config_of("olmo")).decode


def test_every_kind_of_layer_is_in_the_small_model():
    kinds = ["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"] * 20
    small = small_config(config_of("olmo3", layer_types=kinds))
    assert small.layer_types == kinds[:4] and small.num_hidden_layers == 4 and small.vocab_size == 64


def test_a_model_that_stays_large_is_not_tried(monkeypatch):
    monkeypatch.setattr(trainable_family, "MOST_PARAMETERS", 1_000)
    assert try_family(config_of("olmo")).tried is False


@pytest.mark.parametrize("name", ["mamba", "no_such_family"])
def test_an_untrainable_family_is_refused_with_the_remedy(name):
    config = config_of(name) if name == "mamba" else {**LARGE, "model_type": name}
    with pytest.raises(ModelError, match=r"; name a model of another family$"):
        refuse_untrainable(config)

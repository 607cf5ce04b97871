"""What the planner's fake tensors keep for a CUDA device: what its kernels keep, whose own code is traced on a machine without
one."""

import pytest
import torch
from transformers import AutoConfig

from model_ops.models.attention import packed_attention
from model_ops.planning.step_trace import TraceSettings, trace_micro_batch
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

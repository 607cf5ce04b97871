"""What the planner's stand-in for a fused attention kernel keeps for the backward pass: what the kernel keeps."""

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import model_ops.planning.step_trace  # noqa: F401  registers "traced_fused"


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2)])
@pytest.mark.parametrize(("batch", "tokens", "head_dim"), [(1, 48, 16), (2, 32, 64)])
def test_query_key_value_output_and_log_sum_exp_are_kept(heads, kv_heads, batch, tokens, head_dim):
    streams = [torch.zeros(batch, count, tokens, head_dim, requires_grad=True) for count in (heads, kv_heads, kv_heads)]
    kept = {}

    def keep(tensor):
        if tensor.dtype in (torch.bfloat16, torch.float32) and tensor.numel():
            kept[tensor.untyped_storage().data_ptr()] = tensor.nbytes
        return tensor

    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output, _ = ALL_ATTENTION_FUNCTIONS["traced_fused"](torch.nn.Module(), *streams)
    assert output.shape == (batch, tokens, heads, head_dim) and output.dtype == torch.bfloat16
    of_heads, log_sums = 2 * batch * tokens * head_dim, 4 * batch * tokens * heads
    least = of_heads * (2 * heads + 2 * kv_heads) + log_sums  # FlashAttention-2: keys and values of their own heads
    most = of_heads * 4 * heads + log_sums  # repeated for each head
    assert least <= sum(kept.values()) <= most
    gradients = torch.autograd.grad(output.float().sum(), streams)
    assert [gradient.shape for gradient in gradients] == [stream.shape for stream in streams]

"""Attention over rows of different lengths."""

import pytest
import torch

from model_ops.decoding.ragged_cache import RaggedCache


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("tokens", [1, 4])
def test_attention_in_bfloat16_is_that_in_float32(tokens, window):
    """On a CPU, bfloat16 has a kernel of its own."""
    torch.manual_seed(0)
    outputs = []
    past = [torch.randn(3, 9, heads, 16).bfloat16() for heads in (6, 2, 2)]
    new = [torch.randn(3, tokens, heads, 16).bfloat16() for heads in (6, 2, 2)]
    for dtype in (torch.float32, torch.bfloat16):
        cache = RaggedCache(1, 3, 2, 16, dtype)
        cache.reserve(9)
        cache.attend(0, *(part.to(dtype) for part in past), cache.positions(9))
        cache.lengths = torch.tensor([9, 4, 1])
        cache.reserve(tokens)
        outputs.append(cache.attend(0, *(part.to(dtype) for part in new), cache.positions(tokens), window).float())
    torch.testing.assert_close(outputs[1], outputs[0], atol=0.03, rtol=0.03)

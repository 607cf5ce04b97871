"""Windows, soft caps and sinks in blocks: outputs and every gradient equal the plain formula, whatever the block."""

import itertools

import pytest
import torch

from model_ops.models import block_attention as module
from model_ops.models.block_attention import block_attention


def plain(query, key, value, scaling, window, softcap, sinks):
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = query @ key.transpose(2, 3) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    place = torch.arange(query.shape[2])
    seen = place[None] <= place[:, None]
    if window is not None:
        seen &= place[None] > place[:, None] - window
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    return scores.softmax(-1)[..., : query.shape[2]] @ value


def streams(longest, dtype=torch.float64):
    torch.manual_seed(longest)
    shapes = [(2, 4, longest, 8), (2, 2, longest, 8), (2, 2, longest, 8), (4,)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize(
    ("longest", "window", "softcap", "sinks"),
    list(itertools.product([1, 37, 64, 201], [None, 1, 16, 64], [None, 2.0], [False, True])),
)
def test_outputs_and_gradients_equal_the_plain_formula(monkeypatch, longest, window, softcap, sinks):
    monkeypatch.setattr(module, "SMALLEST_BLOCK", 13)
    monkeypatch.setattr(module, "BLOCK_SCORES", {"cpu": 1})
    *given, sink = streams(longest)
    wanted_from = [*given, *([sink] if sinks else [])]
    ours = block_attention(*given, 0.4, window, softcap, sink if sinks else None)
    theirs = plain(*given, 0.4, window, softcap, sink if sinks else None)
    upstream = torch.randn_like(theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for one, other in zip(
        torch.autograd.grad(ours, wanted_from, upstream), torch.autograd.grad(theirs, wanted_from, upstream), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_block_does_not_change_the_result_beyond_rounding(monkeypatch):
    *given, sink = streams(150, torch.float32)
    whole = block_attention(*given, 0.3, 40, None, sink)
    monkeypatch.setattr(module, "SMALLEST_BLOCK", 7)
    monkeypatch.setattr(module, "BLOCK_SCORES", {"cpu": 1})
    torch.testing.assert_close(block_attention(*given, 0.3, 40, None, sink), whole, rtol=1e-5, atol=1e-6)


def test_bfloat16_is_as_close_as_the_plain_formula_in_bfloat16():
    *given, sink = streams(96, torch.float32)
    exact = plain(*given, 0.3, 32, 5.0, sink)
    low = [stream.detach().bfloat16() for stream in given]
    ours = block_attention(*low, 0.3, 32, 5.0, sink).float()
    theirs = plain(*low, 0.3, 32, 5.0, sink.bfloat16()).float()
    assert 0 < (ours - exact).abs().mean() < 1.3 * (theirs - exact).abs().mean()


def test_memory_grows_with_tokens_not_with_their_square():
    """What autograd keeps of a document of 4,096 tokens: streams and one number a row, no scores."""
    *given, sink = streams(4_096, torch.float32)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor):
        block_attention(*given, 0.3, 128, 5.0, sink)
    assert sum(kept) < 4 * sum(stream.numel() for stream in given)

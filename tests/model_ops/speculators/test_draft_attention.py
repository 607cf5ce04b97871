"""Attention of draft steps against its definition: every path, ragged documents, grouped heads, and memory by length."""

import pytest
import torch

from model_ops.speculators.backbone import draft_attention as module
from model_ops.speculators.backbone.draft_attention import WindowLayout, draft_attention
from tests.model_ops.flash_by_definition import FlashByDefinition

BEFORE, WINDOWS = [6, 0, 11, 3, 40, 4], [5, 9, 1, 0, 30, 7]
PATHS = {
    "explicit": (512, 1 << 21),
    "explicit, one query at a time": (512, 60),
    "the CPU's kernel": (0, 1 << 21),
    "both": (30, 1 << 21),
}


def streams(heads, kv_heads, steps, head_dim=16, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    tokens, queries = sum(BEFORE) + sum(WINDOWS), sum(WINDOWS)
    shapes = [(queries, heads), (tokens, kv_heads), (tokens, kv_heads), *[(queries, kv_heads)] * (2 * steps)]
    return [torch.randn(*shape, head_dim).to(dtype).requires_grad_() for shape in shapes]


def pairs(later):
    return list(zip(later[::2], later[1::2], strict=True))


def by_definition(layout, query, keys, values, *later):
    """Query by query: the scores of all that it sees, one softmax, the values."""
    outputs, group = [], query.shape[1] // keys.shape[1]
    for document, (before, window) in enumerate(zip(layout.before, layout.windows, strict=True)):
        for place in range(window):
            which = layout.query_starts[document] + place
            seen = slice(layout.key_starts[document], layout.key_starts[document] + before + place + 1)
            key = torch.cat([keys[seen], *(own[which, None] for own in later[::2])]).repeat_interleave(group, 1)
            value = torch.cat([values[seen], *(own[which, None] for own in later[1::2])]).repeat_interleave(group, 1)
            scores = torch.einsum("hd,thd->ht", query[which], key) * query.shape[-1] ** -0.5
            outputs.append(torch.einsum("ht,thd->hd", scores.softmax(-1), value))
    return torch.stack(outputs)


def use(path, monkeypatch):
    monkeypatch.setattr(module, "EXPLICIT_UP_TO", PATHS[path][0])
    monkeypatch.setattr(module, "SCORES_AT_ONCE", {"cpu": PATHS[path][1]})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3), (4, 1)])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_every_path_equals_the_definition(path, heads, kv_heads, steps, monkeypatch):
    use(path, monkeypatch)
    layout = WindowLayout.of(BEFORE, WINDOWS, torch.device("cpu"))
    query, keys, values, *later = given = streams(heads, kv_heads, steps)
    expected = by_definition(layout, *given)
    found = draft_attention(query, keys, values, pairs(later), layout)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    upstream = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(found, given, upstream), torch.autograd.grad(expected, given, upstream), strict=True
    ):
        torch.testing.assert_close(one, other, atol=5e-6, rtol=1e-4)


@pytest.mark.parametrize("path", PATHS)
def test_bfloat16_is_as_near_as_bfloat16_can_be(path, monkeypatch):
    use(path, monkeypatch)
    layout = WindowLayout.of(BEFORE, WINDOWS, torch.device("cpu"))
    query, keys, values, *later = given = streams(4, 2, 3, dtype=torch.bfloat16)
    exact = [stream.detach().float().requires_grad_() for stream in given]
    expected = by_definition(layout, *exact)
    found = draft_attention(query, keys, values, pairs(later), layout)
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, exact, upstream)
    for one, other in zip([found, *torch.autograd.grad(found, given, upstream.bfloat16())], [expected, *wanted], strict=True):
        assert one.dtype == torch.bfloat16
        assert float((one.detach().float() - other.detach()).norm() / other.detach().norm()) < 0.02


def test_scores_of_any_size_keep_the_softmax_finite():
    layout = WindowLayout.of(BEFORE, WINDOWS, torch.device("cpu"))
    query, keys, values, *later = given = [stream.detach() for stream in streams(4, 2, 2)]
    for factor in (1e3, 1e-30):
        large = [query * factor, keys, values, *(key * factor for key in later)]
        found = draft_attention(*large[:3], pairs(large[3:]), layout)
        torch.testing.assert_close(found, by_definition(layout, *large), atol=1e-3 if factor > 1 else 1e-6, rtol=1e-3)
    assert draft_attention(*given[:3], pairs(later), layout).isfinite().all()


@pytest.mark.parametrize(("path", "tokens"), [("explicit", 512), ("the CPU's kernel", 2_048)])
def test_memory_is_linear_in_length(path, tokens, monkeypatch):
    use(path, monkeypatch)
    if path == "explicit":
        monkeypatch.setattr(module, "EXPLICIT_UP_TO", 1 << 20)
        monkeypatch.setattr(module, "SCORES_AT_ONCE", {"cpu": 1 << 15})

    def peak(tokens):
        before = window = tokens // 2
        layout = WindowLayout.of([before], [window], torch.device("cpu"))
        shapes = [window, tokens, tokens, window, window]
        given = [torch.randn(rows, 2, 16, requires_grad=True) for rows in shapes]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            draft_attention(*given[:3], [(given[3], given[4])], layout).sum().backward()
        changes = sorted(
            (event.start_ns(), event.nbytes())
            for event in profile.profiler.kineto_results.events()
            if event.name() == "[memory]"
        )
        return int(torch.tensor([change for _, change in changes]).cumsum(0).max())

    small = peak(tokens)
    assert small > 2 * tokens * 2 * 16 * 4  # the account sees keys and values
    assert peak(4 * tokens) < 5 * small
    assert 2 * (2 * tokens) * (4 * tokens) * 4 > 10 * small  # all scores of the longer row, held, would be seen


@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_the_cuda_path_equals_the_definition(monkeypatch, steps, head_dim):
    monkeypatch.setattr(module, "takes_varlen_kernel", lambda *_: True)
    layout = WindowLayout.of(BEFORE, WINDOWS, torch.device("cpu"))
    query, keys, values, *later = given = streams(4, 2, steps, head_dim=head_dim)
    expected = by_definition(layout, *given)
    upstream = torch.randn_like(expected)
    with FlashByDefinition() as flash:
        found = draft_attention(query, keys, values, pairs(later), layout)
        gradients = torch.autograd.grad(found, given, upstream)
    assert len(flash.calls) == 2
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    for one, other in zip(gradients, torch.autograd.grad(expected, given, upstream), strict=True):
        torch.testing.assert_close(one, other, atol=5e-6, rtol=1e-4)


def test_the_cuda_kernel_is_called_as_it_is_declared(monkeypatch):
    """No CUDA here: shapes and dtypes of the fused kernel's call and of its backward pass, by torch's own description."""
    monkeypatch.setattr(module, "takes_varlen_kernel", lambda *_: True)
    layout = WindowLayout.of(BEFORE, WINDOWS, torch.device("meta"))
    queries, tokens = sum(WINDOWS), sum(BEFORE) + sum(WINDOWS)
    given = tuple(
        torch.empty(*shape, 64, dtype=torch.bfloat16, device="meta") for shape in ((queries, 8), (tokens, 2), (tokens, 2))
    )
    output, normaliser = module._causal_part(given, layout)
    assert output.shape == (queries, 8, 64) and normaliser.shape == (queries, 8) and normaliser.dtype == torch.float32
    gradients = module._causal_gradients(torch.empty_like(output), given, output, normaliser, layout)
    assert [gradient.shape for gradient in gradients] == [stream.shape for stream in given]
    boundaries = module._boundaries(layout)
    assert (boundaries.longest_query, boundaries.longest_key) == (30, 70)


@pytest.mark.gpu
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_on_cuda_the_definition_holds(steps, dtype):
    """bfloat16 takes the fused kernel, float32 the explicit products; queries and keys are float32 under autocast."""
    given = streams(4, 2, steps)
    expected = by_definition(WindowLayout.of(BEFORE, WINDOWS, torch.device("cpu")), *given)
    upstream = torch.randn_like(expected)
    wanted = [expected, *torch.autograd.grad(expected, given, upstream)]
    layout = WindowLayout.of(BEFORE, WINDOWS, torch.device("cuda"))
    moved = [stream.detach().cuda().requires_grad_() for stream in given]
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = draft_attention(*moved[:2], moved[2].to(dtype), pairs(moved[3:]), layout)
    assert found.dtype == dtype
    for one, other in zip([found, *torch.autograd.grad(found, moved, upstream.cuda().to(dtype))], wanted, strict=True):
        assert (one.cpu().float() - other).norm() < (0.03 if dtype == torch.bfloat16 else 1e-4) * other.norm()

"""Flash attention over a packed row: windows, sinks and both passes, with the kernel's definition on a CPU and on CUDA."""

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3Config, Qwen3ForCausalLM

from model_ops.models import attention, packed_attention
from model_ops.tensors import Boundaries, same_dtype, takes_varlen_kernel, varlen_kernel
from model_ops.tensors.torch_internals import FakeTensorMode
from tests.model_ops.flash_by_definition import FlashByDefinition

LENGTHS = [5, 40, 1, 18]


@pytest.fixture
def flash(monkeypatch):
    """The path of a CUDA device, with the kernel's operators replaced by their definition."""
    monkeypatch.setattr(attention, "takes_varlen_kernel", lambda *_: True)
    with FlashByDefinition() as flash:
        yield flash


def streams(batch=1, head_dim=16):
    generator = torch.Generator().manual_seed(0)
    shapes = [(batch, sum(LENGTHS), heads, head_dim) for heads in (4, 2, 2)]
    leaves = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    return leaves, torch.randn(4, generator=generator).requires_grad_()


def both(given, sinks, **options):
    """(output, gradients) of packed_attention in transformers' layout, [batch, heads, tokens, head_dim]."""
    output, _ = packed_attention(
        torch.nn.Module(), *(stream.transpose(1, 2) for stream in given), scaling=0.3, s_aux=sinks, **options
    )
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(9)).to(output)
    wanted = [*given, *([] if sinks is None else [sinks])]
    return [output, *torch.autograd.grad(output, wanted, upstream)]


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("window", [None, 1, 7, 40])
@pytest.mark.parametrize(("batch", "lengths"), [(1, LENGTHS), (1, None), (3, None)])
def test_the_cuda_path_equals_the_cpu_path(flash, monkeypatch, batch, lengths, window, with_sinks):
    given, sinks = streams(batch)
    options = {"document_lengths": lengths, "sliding_window": window}
    found = both(given, sinks if with_sinks else None, **options)
    assert len(flash.calls) == 2, "one call for the whole row, and one for its gradients"
    monkeypatch.setattr(attention, "takes_varlen_kernel", takes_varlen_kernel)
    for one, other in zip(found, both(given, sinks if with_sinks else None, **options), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_soft_caps_dropout_and_a_cpu_keep_the_other_paths(flash):
    given, _ = streams()
    both(given, None, document_lengths=LENGTHS, softcap=3.0)
    both(given, None, document_lengths=LENGTHS, dropout=0.5)
    assert not flash.calls
    assert not takes_varlen_kernel(*(stream[0].bfloat16() for stream in given))


class SaysCuda(torch.Tensor):
    is_cuda = True


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("head_dim", "value_dim"), [(64, 64), (256, 256), (12, 12), (264, 264), (192, 128)])
def test_torch_is_asked_about_every_device_and_only_about_what_the_kernel_takes(monkeypatch, dtype, head_dim, value_dim):
    asked = []
    monkeypatch.setattr(varlen_kernel, "can_use_flash_attention", lambda params: asked.append(params) or True)
    query, keys = (torch.empty(70, heads, head_dim, dtype=dtype).as_subclass(SaysCuda) for heads in (8, 2))
    takes = takes_varlen_kernel(query, keys, keys[..., :value_dim])
    assert not takes_varlen_kernel(query.double(), keys, keys), "mixed dtypes"
    assert takes == (head_dim in (64, 256) and dtype != torch.float32) == bool(asked)
    if asked:
        assert asked[0].enable_gqa and asked[0].query.requires_grad and asked[0].query.shape == (1, 8, 1, head_dim)


def test_the_kernel_is_called_as_torch_declares_it():
    with FakeTensorMode():
        query = torch.empty(64, 8, 64, device="cuda", dtype=torch.bfloat16)
        keys = torch.empty(64, 2, 64, device="cuda", dtype=torch.bfloat16)
        starts = torch.tensor([0, 40, 64], device="cuda", dtype=torch.int32)
        boundaries = Boundaries(starts, starts, 40, 40)
        for window in (None, 16):
            output, normaliser = varlen_kernel.varlen_forward(query, keys, keys, boundaries, 0.1, window)
            assert output.shape == query.shape and normaliser.shape == (8, 64) and normaliser.dtype == torch.float32
            found = varlen_kernel.varlen_backward(output, query, keys, keys, output, normaliser, boundaries, 0.1, window)
            assert [one.shape for one in found] == [query.shape, keys.shape, keys.shape]


def test_under_autocast_rotated_queries_and_keys_get_the_dtype_of_the_values():
    mixed = torch.ones(2), torch.ones(2), torch.ones(2).bfloat16()
    assert [stream.dtype for stream in same_dtype(*mixed)] == [torch.float32, torch.float32, torch.bfloat16]
    with torch.autocast("cpu", torch.bfloat16):
        assert {stream.dtype for stream in same_dtype(*mixed)} == {torch.bfloat16}


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("window", [None, 1, 7])
def test_on_cuda_the_kernel_equals_the_cpu_path(monkeypatch, head_dim, window, with_sinks):
    given, sinks = streams(head_dim=head_dim)
    sinks = sinks if with_sinks else None
    options = {"document_lengths": LENGTHS, "sliding_window": window}
    wanted = both(given, sinks, **options)
    calls, forward = [], varlen_kernel.varlen_forward
    monkeypatch.setattr(varlen_kernel, "varlen_forward", lambda *given: calls.append(1) or forward(*given))
    on_device = [stream.detach().cuda().requires_grad_() for stream in given]
    with torch.autocast("cuda", torch.bfloat16):
        found = both(on_device, None if sinks is None else sinks.detach().cuda().requires_grad_(), **options)
    assert calls, "the flash kernel was not taken"
    for one, other in zip(found, wanted, strict=True):
        assert (one.cpu().float() - other).norm() < 0.03 * other.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["qwen3", "gpt_oss"])
def test_on_cuda_a_packed_model_under_autocast_takes_the_kernel(monkeypatch, family):
    """The whole model, whose rotary positions return float32 queries and keys, gives the CPU's float32 loss gradients."""
    shape = {
        "vocab_size": 64,
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "attn_implementation": "packed",
    }
    torch.manual_seed(0)
    model = (
        Qwen3ForCausalLM(Qwen3Config(**shape))
        if family == "qwen3"
        else GptOssForCausalLM(GptOssConfig(**shape, num_local_experts=2, num_experts_per_tok=1, sliding_window=8))
    )
    ids = torch.randint(64, (1, sum(LENGTHS)))
    places = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    calls, forward = [], varlen_kernel.varlen_forward
    monkeypatch.setattr(varlen_kernel, "varlen_forward", lambda *given: calls.append(1) or forward(*given))
    losses = []
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(ids.to(device), position_ids=places.to(device), use_cache=False, document_lengths=LENGTHS).logits
        logits.float().logsumexp(-1).mean().backward()
        losses.append(torch.cat([p.grad.flatten().cpu().float() for p in model.parameters() if p.grad is not None]))
    assert len(calls) == 2 and (losses[1] - losses[0]).norm() < 0.1 * losses[0].norm()

"""Norms and gated activations by one pass over rows: torch's results and gradients, every dtype, layout and number of
threads."""

import copy

import architectures
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model_ops.tensors import fused_rows, use_memory_efficient_layers

ACTIVATIONS = {"silu": (fused_rows.SILU, F.silu), "gelu": (fused_rows.GELU_TANH, lambda x: F.gelu(x, approximate="tanh"))}
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=[1, 3], autouse=True)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def some(*shape, seed=0, scale=2.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def close(found, wanted):
    """Equal to the rounding of `found`'s dtype."""
    tolerance = 1e-5 if found.dtype == torch.float32 else 2**-8
    torch.testing.assert_close(found.float(), wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


@pytest.mark.parametrize("rows", [2, 37])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_and_its_gradients(dtype, rows):
    x, weight, upstream = some(rows, 4, 24).to(dtype).transpose(0, 1), some(24, seed=1), some(4, rows, 24, seed=2).to(dtype)
    exact, exact_weight = x.float().requires_grad_(), weight.clone().requires_grad_()
    wanted = F.rms_norm(exact, (24,), exact_weight, 1e-6)
    wanted.backward(upstream.float())
    found, scales = fused_rows.norm(x, weight, 1e-6, dtype)
    close(found, wanted.detach())
    for one, other in zip(fused_rows.norm_gradient(upstream, x, weight, scales), (exact.grad, exact_weight.grad), strict=True):
        close(one, other)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gated_activation_and_its_gradients(dtype, name):
    activation, reference = ACTIVATIONS[name]
    gate, up, upstream = (some(2, 19, 40, seed=seed, scale=4.0).to(dtype) for seed in range(3))
    exact = [gate.float().requires_grad_(), up.float().requires_grad_()]
    wanted = reference(exact[0]) * exact[1]
    wanted.backward(upstream.float())
    found = fused_rows.gated(gate, up, activation)
    close(found, wanted.detach())
    *gradients, again = fused_rows.gated_gradient(upstream, gate, up, activation)
    assert torch.equal(again, found)
    for one, other in zip(gradients, exact, strict=True):
        close(one, other.grad)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_numbers_stay_and_broken_ones_show(dtype):
    gate = torch.tensor([[-3e38, -100.0, 0.0, 100.0, 3e38, torch.inf, torch.nan]]).repeat(3, 1).to(dtype)
    found = fused_rows.gated(gate, torch.ones_like(gate), fused_rows.SILU)[2].float()
    assert found[1:5].tolist() == pytest.approx([0.0, 0.0, 100.0, float(gate[0, 4])], abs=1e-30)
    assert found[5] == torch.inf and found[6].isnan()
    assert fused_rows.norm(gate, torch.ones(7), 1e-6, dtype)[0].isnan().any()


@pytest.mark.parametrize("vocabulary", [7, 5_000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy_and_its_gradient(dtype, vocabulary):
    logits, weights = some(23, vocabulary, scale=5.0).to(dtype), some(23, seed=1).abs()
    labels = torch.randint(0, vocabulary, (23,), generator=torch.Generator().manual_seed(2))
    labels[:5] = logits[:5].argmax(-1)
    logits[6, 3] = -torch.inf if labels[6] != 3 else 0.0
    exact = logits.double().requires_grad_()
    normaliser = exact.logsumexp(-1)
    wanted = (F.cross_entropy(exact, labels, reduction="none") + 0.01 * normaliser.square()) * weights
    wanted.sum().backward()
    overwritten = logits.clone()
    losses, hits = fused_rows.cross_entropy(overwritten, labels, weights, 0.01, with_gradient=True)
    close(losses, wanted.detach().float())
    close(overwritten, exact.grad.float())
    assert torch.equal(hits.bool(), logits.gather(1, labels[:, None])[:, 0] >= logits.amax(-1))
    again, _ = fused_rows.cross_entropy(logits.clone(), labels, weights, 0.01, with_gradient=False)
    assert torch.equal(again, losses)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_broken_logit_breaks_its_rows_loss_only(broken):
    logits = some(4, 9)
    logits[1, 5] = broken
    losses, _ = fused_rows.cross_entropy(logits, torch.zeros(4, dtype=torch.int64), torch.ones(4), 0.0, with_gradient=True)
    assert losses.isnan().tolist() == logits.isnan().any(-1).tolist() == [False, True, False, False]


def test_a_label_outside_the_vocabulary_is_no_place_in_memory():
    for label in (-1, 9):
        with pytest.raises(IndexError, match="vocabulary of 9"):
            fused_rows.cross_entropy(some(1, 9), torch.tensor([label]), torch.ones(1), 0.0, with_gradient=True)


def test_a_logsumexp_whose_square_overflows_is_no_loss_of_nan_without_z_loss():
    logits = torch.tensor([[3e38, -3e38, 0.0]])
    losses, _ = fused_rows.cross_entropy(logits, torch.tensor([0]), torch.ones(1), 0.0, with_gradient=True)
    assert losses.tolist() == [0.0]


def test_bfloat16_is_rounded_as_torch_rounds():
    bits = torch.arange(1 << 16, dtype=torch.int32)
    numbers = (bits << 16 | torch.randint(0, 1 << 16, bits.shape, generator=torch.Generator().manual_seed(0))).int()
    numbers = numbers.view(torch.float32).view(256, 256)
    up = numbers.where(numbers.abs() < 1e38, torch.tensor(1.0))  # times 2: a gate of 100 is open, and 100 / 50 is exact
    gate = torch.full_like(up, 128.0)
    found = fused_rows.gated(gate.bfloat16(), up.bfloat16(), fused_rows.SILU)
    assert torch.equal(found, (gate * up.bfloat16().float()).bfloat16())
    exact, _ = fused_rows.norm(up, torch.ones(256), 1e-6, torch.float32)
    rounded, _ = fused_rows.norm(up, torch.ones(256), 1e-6, torch.bfloat16)
    assert torch.equal(exact.bfloat16().nan_to_num(7), rounded.nan_to_num(7))


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "llama"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_takes_the_kernels(monkeypatch, name, precision):
    """The same loss and gradients as the module's own code, also where a weight is frozen; the kernels were called."""
    monkeypatch.setattr(fused_rows, "FEWEST_NUMBERS", 1)
    called = set()

    def noted(name, kernel):
        return lambda *given: (called.add(name), kernel(*given))[1]

    for kernel in ("norm", "norm_gradient", "gated", "gated_gradient"):
        monkeypatch.setattr(fused_rows, kernel, noted(kernel, getattr(fused_rows, kernel)))
    plain = architectures.build(name)
    efficient = copy.deepcopy(plain)
    use_memory_efficient_layers(efficient)
    ids, gradients = torch.randint(3, 61, (1, 40), generator=torch.Generator().manual_seed(1)), []
    for model in (plain, efficient):
        next(model.parameters()).requires_grad_(False)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            logits = model(ids, use_cache=False).logits[0].float()
        nn.functional.cross_entropy(logits[:-1], ids[0, 1:]).backward()
        gradients.append([logits.detach(), *(parameter.grad for parameter in model.parameters() if parameter.requires_grad)])
    for one, other in zip(*gradients, strict=True):
        tolerance = 1e-4 if precision == "float32" else 0.05
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()))
    assert called == {"norm", "norm_gradient", "gated", "gated_gradient"}


def test_other_tensors_take_torchs_operations():
    large = torch.zeros(1 << 8, 1 << 8)
    assert fused_rows.takes(large) and fused_rows.takes(nn.Parameter(large), large.bfloat16())
    for refused in (torch.zeros(4, 4), large.double(), large.half(), large.to("meta"), large.flatten()):
        assert not fused_rows.takes(refused)


def test_the_memory_of_a_weight_can_still_be_freed():
    """FSDP frees gathered weights by resizing them, which memory that numpy has seen does not allow."""
    x, weight = some(4, 24), some(24, seed=1)
    _, scales = fused_rows.norm(x, weight, 1e-6, torch.float32)
    fused_rows.norm_gradient(x, x, weight, scales)
    weight.untyped_storage().resize_(0)
    assert weight.untyped_storage().nbytes() == 0

"""Experts are multiplied in autocast's precision, and give what transformers' loop over experts gives."""

import pytest
import torch
from architectures import build
from torch.utils._python_dispatch import TorchDispatchMode

import model_ops.models.experts as experts

MIXTURES = ("qwen3_moe", "gpt_oss")
"""Experts as [out, in] without bias, and as [in, out] with bias and clamped gates."""
EXPERTS = 7


def outputs(model, ids):
    logits = model(input_ids=ids, use_cache=False).logits
    logits.square().sum().backward()
    return [logits.detach(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("width", [24, 18])
def test_outputs_and_gradients_are_those_of_transformers_own_loop(name, width):
    sizes = {"moe_intermediate_size": width} if name == "qwen3_moe" else {"intermediate_size": width}
    ours, loop = (build(name, **sizes) for _ in range(2))
    loop.set_experts_implementation("eager")
    ids = torch.randint(61, (2, 15), generator=torch.Generator().manual_seed(0))
    for one, other in zip(outputs(ours, ids), outputs(loop, ids), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


@pytest.mark.parametrize("name", MIXTURES)
def test_products_under_autocast_are_bfloat16_and_gradients_float32(name, monkeypatch):
    model, seen = build(name), []
    ids = torch.randint(61, (1, 30), generator=torch.Generator().manual_seed(0))
    exact = outputs(build(name), ids)
    product = experts.grouped_product
    monkeypatch.setattr(
        experts,
        "grouped_product",
        lambda rows, weight, ends: (seen.append((rows.dtype, weight.dtype)), product(rows, weight, ends))[1],
    )
    with torch.autocast("cpu", torch.bfloat16):
        rounded = outputs(model, ids)
    assert set(seen) == {(torch.bfloat16, torch.bfloat16)}
    assert all(gradient.dtype == torch.float32 for gradient in rounded[1:])
    error = (rounded[0] - exact[0]).norm() / exact[0].norm()
    assert 0 < error < 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padded_products_are_those_of_a_loop(dtype):
    """What CUDA computes for widths that its grouped product refuses."""
    generator = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(*shape, generator=generator).to(dtype).requires_grad_() for shape in ((11, 18), (4, 18, 27)))
    ends = torch.tensor([3, 3, 10, 11], dtype=torch.int32)
    made = [product(rows, weight, ends) for product in (experts.grouped_product, experts.grouped_product_padded)]
    upstream = torch.randn(made[0].shape, generator=generator).to(dtype)
    found = [[one, *torch.autograd.grad(one, (rows, weight), upstream)] for one in made]
    for loop, padded in zip(*found, strict=True):
        torch.testing.assert_close(padded, loop, rtol=1e-4 if dtype == torch.float32 else 2e-2, atol=1e-4)


class Casts(TorchDispatchMode):
    """Counts copies of stacked weights to another dtype."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator, types, given=(), named=None):
        if operator is torch.ops.aten._to_copy.default and given[0].ndim == 3 and given[0].dtype != named["dtype"]:
            self.count += given[0].shape[0] == EXPERTS
        return operator(*given, **(named or {}))


@pytest.mark.parametrize(("dtype", "casts"), [(torch.bfloat16, 0), (torch.float32, 2)])
def test_frozen_experts_are_not_cast_and_trained_ones_once_a_layer_as_autocast_does(dtype, casts):
    """Of an adapter's run, experts are bfloat16 as loaded; float32 masters are cast once in each micro-batch's forward."""
    model = build("qwen3_moe", num_hidden_layers=1, num_experts=EXPERTS)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    ids = torch.randint(61, (1, 30), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), Casts() as seen:
        model(input_ids=ids, use_cache=False)
    assert seen.count == casts, "gate with up, and down"


@pytest.mark.gpu
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("width", [24, 18])
def test_on_cuda_a_mixture_gives_what_a_cpu_gives(name, width):
    sizes = {"moe_intermediate_size": width} if name == "qwen3_moe" else {"intermediate_size": width}
    model, ids = build(name, **sizes), torch.randint(61, (2, 15), generator=torch.Generator().manual_seed(0))
    wanted = outputs(model, ids)
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        found = outputs(model.cuda(), ids.cuda())
    for one, other in zip(found, wanted, strict=True):
        assert (one.cpu() - other).norm() < 0.2 * other.norm() + 1e-6

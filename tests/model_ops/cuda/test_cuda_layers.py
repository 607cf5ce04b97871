"""A model's layers on CUDA, without a device: Triton's interpreter computes where a device would, and blocks give what
transformers' own code gives, forward and backward."""

import sys
from functools import partial

import pytest
import torch

from model_ops.models import attention
from model_ops.models.tiny_families import tiny_model
from model_ops.tensors import cuda_rows, memory_efficient_layers
from model_ops.tensors.memory_efficient_layers import use_memory_efficient_layers
from tests.model_ops import interpreted  # noqa: F401  before the kernels
from tests.model_ops.flash_by_definition import FlashByDefinition

LENGTHS = [7, 1, 12]


@pytest.fixture
def placed(monkeypatch):
    """Changes the layers of a model as where it is on CUDA; rotary functions of transformers are put back after the test."""

    def change(model):
        module = sys.modules[type(model).__module__]
        monkeypatch.setattr(module, "apply_rotary_pos_emb", module.apply_rotary_pos_emb)
        with monkeypatch.context() as here:
            here.setattr(memory_efficient_layers, "_on_cuda", lambda model: True)
            return use_memory_efficient_layers(model)

    return change


@pytest.fixture
def cuda(monkeypatch):
    """Every choice that is CUDA's, with the names of the kernels that ran."""
    ran, launch = [], cuda_rows._launch
    monkeypatch.setattr(cuda_rows, "takes", lambda *tensors: all(one.dtype in cuda_rows.DTYPES for one in tensors))
    monkeypatch.setattr(memory_efficient_layers.fused_rows, "takes", lambda *_: False)
    monkeypatch.setattr(cuda_rows, "_launch", lambda name, *given, **named: ran.append(name) or launch(name, *given, **named))
    monkeypatch.setattr(attention, "takes_varlen_kernel", lambda *_: True)
    with FlashByDefinition():
        yield ran


def found_by(model):
    ids = torch.randint(3, 60, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(1))
    places = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    model.zero_grad()
    logits = model(ids, position_ids=places, use_cache=False, document_lengths=LENGTHS).logits
    logits.logsumexp(-1).square().mean().backward()
    return [logits.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(("family", "added"), [("llama", True), ("qwen3", True), ("gemma", False)])
def test_a_model_learns_the_same_with_and_without_kernels(request, placed, family, added, frozen):
    model = tiny_model(family, attention="packed").train()
    if frozen:  # norms learn nothing, as with adapters
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("norm" not in name)
    wanted = found_by(model)
    placed(model)
    ran = request.getfixturevalue("cuda")
    found = found_by(model)
    for one, other in zip(found, wanted, strict=True):
        if other is None:
            assert one is None
        else:
            torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-6)
    layers, heads = 2, 2 if family == "qwen3" else 0
    norms = 2 * layers + 1 + heads * layers
    assert ran.count("norm_rows") == ran.count("norm_gradient_rows") == norms
    assert ran.count("gated_rows") == ran.count("gated_gradient_rows") == layers
    assert ran.count("rotated_rows") == 4 * layers  # queries and keys, forward and backward
    assert isinstance(sys.modules[type(model).__module__].apply_rotary_pos_emb, partial)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_attention_is_added_and_normed_in_one_pass(request, placed, monkeypatch, precision):
    """bfloat16: frozen weights, as under adapters."""
    model = tiny_model("llama", attention="packed").to(precision).train()
    placed(model)
    request.getfixturevalue("cuda")
    seen, norm = [], cuda_rows.norm
    monkeypatch.setattr(
        cuda_rows, "norm", lambda x, added, *given: seen.append((added is not None, *given[-2:])) or norm(x, added, *given)
    )
    with torch.autocast("cpu", torch.bfloat16):
        found_by(model)
    rounded = precision == torch.bfloat16
    assert seen == [(False, rounded, torch.bfloat16), (True, rounded, torch.bfloat16)] * 2 + [(False, rounded, torch.bfloat16)]


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_under_autocast_outputs_are_near_those_of_float32(request, placed, precision):
    model = tiny_model("llama", attention="packed").train()
    wanted = found_by(model)[0]
    model.to(precision)
    placed(model)
    request.getfixturevalue("cuda")
    with torch.autocast("cpu", torch.bfloat16):
        found = found_by(model)[0]
    assert (found.float() - wanted).norm() < 0.03 * wanted.norm()

"""Norms and MLPs that keep less: the same outputs and gradients to rounding, for every architecture; memory that falls."""

import copy

import architectures
import pytest
import torch
from torch import nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm

from model_ops.tensors.memory_efficient_layers import use_memory_efficient_layers


def saved_bytes(module, *inputs):
    """What autograd keeps of a forward pass, weights aside."""
    kept = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # held, so that no other tensor gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(*inputs).float().sum()
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_architecture_gives_the_same_loss_and_gradients(name, precision):
    plain = architectures.build(name)
    efficient = copy.deepcopy(plain)
    changed = use_memory_efficient_layers(efficient)
    norms = sum(type(module).__name__.endswith("RMSNorm") for module in plain.modules())
    mlps = sum(type(module).__name__.endswith("MLP") and hasattr(module, "gate_proj") for module in plain.modules())
    assert changed == norms + mlps > 0
    ids = torch.randint(3, 61, (1, 40), generator=torch.Generator().manual_seed(1))
    gradients = []
    for model in (plain, efficient):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            logits = model(ids, use_cache=False).logits[0].float()
        nn.functional.cross_entropy(logits[:-1], ids[0, 1:]).backward()
        gradients.append([logits.detach(), *(parameter.grad for parameter in model.parameters())])
    for one, other in zip(*gradients, strict=True):
        tolerance = 1e-4 if precision == "float32" else 0.05
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()))


def test_a_norm_keeps_its_input_and_an_mlp_gate_and_up():
    norm, x = Qwen3RMSNorm(64), torch.randn(1, 100, 64, requires_grad=True)
    before = saved_bytes(norm, x)
    assert use_memory_efficient_layers(norm) == 1
    assert saved_bytes(norm, x) <= 1.05 * x.nbytes < 0.7 * before
    mlp = Qwen3MLP(architectures.build("qwen3").config)
    x = torch.randn(1, 100, 32, requires_grad=True)
    before = saved_bytes(mlp, x)
    use_memory_efficient_layers(mlp)
    assert saved_bytes(mlp, x) == x.nbytes + 2 * 100 * 48 * 4 < 0.7 * before


def test_a_module_that_only_looks_alike_stays_as_it_is():
    class OddRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.variance_epsilon = nn.Parameter(torch.ones(8)), 1e-6

        def forward(self, x):
            return 2 * self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    norm = OddRMSNorm()
    assert use_memory_efficient_layers(norm) == 0
    assert torch.equal(norm(torch.ones(1, 1, 8)).round(), torch.full((1, 1, 8), 2.0))


def test_layers_that_are_no_plain_linear_ones_are_still_called():
    """Adapters wrap the last matrix of an MLP; a hook on it must run as well."""

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    mlp, seen = Qwen3MLP(architectures.build("qwen3").config), []
    wrapped = Doubled(48, 32, bias=False)
    wrapped.weight = mlp.down_proj.weight
    use_memory_efficient_layers(mlp)
    x = torch.randn(1, 5, 32)
    once = mlp(x)
    mlp.down_proj.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(mlp(x), once)
    assert seen == [1]
    mlp.down_proj = wrapped
    torch.testing.assert_close(mlp(x), 2 * once)


def test_a_second_call_changes_nothing_more():
    model = architectures.build("llama")
    assert use_memory_efficient_layers(model) > 0
    assert use_memory_efficient_layers(model) == 0

"""LoRA of layers that read one tensor: the same outputs and gradients as layer by layer, in fewer products."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from model_ops.adapters import add_adapters
from model_ops.adapters.lora import LoraLinear, SharedInput
from model_ops.adapters.lora_settings import LoraSettings
from model_ops.models.tiny_families import tiny_model

OUT = (24, 8, 8)


def layers_of(rslora=False):
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(1)
    made = [
        LoraLinear.over(
            nn.Linear(16, out, bias=out == 24).requires_grad_(False), LoraSettings(rank=4 + place, rslora=rslora), generator
        )
        for place, out in enumerate(OUT)
    ]
    for layer in made:
        nn.init.normal_(layer.lora_B)
    return made


def gradients(layers, call):
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
    hidden = x * 2  # no leaf
    outputs = [call(layer, hidden) for layer in layers]
    upstream = [torch.randn(each.shape, generator=torch.Generator().manual_seed(3)) for each in outputs]
    wanted = [x, *(part for layer in layers for part in (layer.lora_A, layer.lora_B))]
    return [*outputs, *torch.autograd.grad(outputs, wanted, upstream)]


@pytest.mark.parametrize("rslora", [False, True])
def test_outputs_and_gradients_are_those_of_single_layers(rslora):
    layers = layers_of(rslora)
    wanted = gradients(layers, lambda layer, x: layer(x))
    group = SharedInput(layers)
    found = gradients(layers, lambda layer, x: group.output_of(layer, x, torch.float32))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert not group._outputs and group._input is None, "nothing is held once all layers were called"


def test_another_input_is_never_given_the_outputs_of_the_one_before():
    layers = layers_of()
    group = SharedInput(layers)
    one, other = torch.randn(3, 16), torch.randn(3, 16)
    group.output_of(layers[0], one, torch.float32)
    for layer in layers:
        torch.testing.assert_close(group.output_of(layer, other, torch.float32), layer(other))


class Products(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator, types, given=(), named=None):
        self.count += operator.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return operator(*given, **(named or {}))


@pytest.mark.parametrize(("dropout", "fewer"), [(0.0, 3 * 2), (0.5, 0)])
def test_a_model_shares_inputs_on_an_accelerator_and_not_with_dropout(monkeypatch, dropout, fewer):
    counts, pays = {}, SharedInput.pays
    some = layers_of()
    assert not pays(SharedInput(some), some[0], "cpu") and not pays(SharedInput(some), layers_of()[0], "cuda")
    monkeypatch.setattr(SharedInput, "pays", lambda self, layer, _: pays(self, layer, "cuda"))
    for shares in (True, False):
        model = tiny_model("llama", attention="sdpa")
        add_adapters(model, LoraSettings(rank=2, dropout=dropout))
        model.train()
        for module in model.modules():
            if isinstance(module, LoraLinear):
                module.group = module.group if shares else None
        with Products() as seen:
            model(torch.zeros(1, 6, dtype=torch.int64), use_cache=False)
        counts[shares] = seen.count
    assert counts[False] - counts[True] == fewer, "two layers: one product for q, k and v, one for gate and up"

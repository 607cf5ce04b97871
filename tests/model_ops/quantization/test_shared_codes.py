"""Rounded layers within a training step share their codes, and no code outlives an update."""

import pytest
import torch
from torch import nn

from model_ops.quantization.registry import SCHEMES
from model_ops.quantization.straight_through import RoundedLinear, share_codes
from model_ops.training.optimizers import build_optimizer
from model_ops.training.settings import TrainingSettings


class Net(nn.Module):
    """Two rounded layers, of which a forward computes each once."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        plain = [nn.Linear(64, 64, bias=False) for _ in range(2)]
        self.layers = nn.ModuleList(RoundedLinear(layer, SCHEMES["w4a16_g32"]) for layer in plain)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def trained(optimizer, shares, monkeypatch):
    """(weights after three steps of two micro-batches, number of encodings in each step)."""
    net, counts = Net(), []
    kind = SCHEMES["w4a16_g32"].load_layer()
    encode = kind.encode
    monkeypatch.setattr(kind, "encode", lambda weight: (counts.append(1), encode(weight))[1])
    values = {"steps": 3, "learning_rate": 0.05, "optimizer": optimizer, "precision": "float32"}
    update = build_optimizer(net, TrainingSettings(**values).resolved())
    encoded = []

    def steps():
        for step in range(3):
            update.zero_grad()
            for part in range(2):
                x = torch.randn(5, 64, generator=torch.Generator().manual_seed(2 * step + part))
                net(x).square().sum().backward()
            update.step()
            encoded.append(len(counts))
            counts.clear()
        assert all(
            torch.equal(value, encode_now(layer)[name]) for layer in net.layers for name, value in layer.encoded().items()
        )

    def encode_now(layer):
        with torch.no_grad():
            return encode(layer.weight.float())

    if shares:
        with share_codes(net.layers):
            steps()
    else:
        steps()
    assert all(layer.stored is None for layer in net.layers)
    monkeypatch.undo()
    return [parameter.detach() for parameter in net.parameters()], encoded


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_encodes_each_layer_once_and_learns_the_same_bits(monkeypatch, optimizer):
    shared, encoded = trained(optimizer, True, monkeypatch)
    alone, encoded_alone = trained(optimizer, False, monkeypatch)
    assert encoded == [2, 2, 2] and encoded_alone == [4, 4, 4]
    assert all(torch.equal(one, other) for one, other in zip(shared, alone, strict=True))


def test_outside_each_forward_encodes_the_weight_that_there_is():
    layer = RoundedLinear(nn.Linear(64, 32, bias=False), SCHEMES["w4a16_g32"])
    before = layer.encoded()
    with share_codes([layer]):
        assert layer.encoded() is layer.encoded()
    with torch.no_grad():
        layer.weight.mul_(-3)
    assert any(not torch.equal(value, layer.encoded()[name]) for name, value in before.items())


def test_an_error_ends_the_sharing():
    layer = RoundedLinear(nn.Linear(64, 32, bias=False), SCHEMES["w4a16_g32"])
    with pytest.raises(ZeroDivisionError), share_codes([layer]):
        layer.encoded()
        raise ZeroDivisionError
    assert layer.stored is None and layer.encoded() is not layer.encoded()

"""Quantized experts give each token the weighted sum of its experts, with one transfer to the host for each call."""

import pytest
import torch
from torch import nn

from model_ops.quantization.int8_linear import Int8Linear
from model_ops.quantization.model_layers import Expert, SeparateExperts
from model_ops.quantization.schemes import W8A8

HIDDEN, WIDTH, EXPERTS = 16, 24, 5


def layer(out_features, in_features):
    made = Int8Linear(in_features, out_features, False, torch.float32, W8A8.stored(out_features, in_features))
    for name, value in Int8Linear.encode(torch.randn(out_features, in_features)).items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("tokens", [1, 40])
def test_each_token_gets_the_weighted_sum_of_its_experts(monkeypatch, tokens):
    torch.manual_seed(0)
    experts = SeparateExperts(
        [Expert(layer(WIDTH, HIDDEN), layer(WIDTH, HIDDEN), layer(HIDDEN, WIDTH)) for _ in range(EXPERTS)], nn.SiLU()
    )
    hidden, weights = torch.randn(tokens, HIDDEN), torch.rand(tokens, 2)
    chosen = torch.stack([torch.randperm(EXPERTS - 1)[:2] for _ in range(tokens)])  # nobody chooses the last one
    wanted = torch.stack(
        [
            sum(
                weight * each.down(nn.functional.silu(each.gate(row[None])) * each.up(row[None]))[0]
                for weight, each in zip(of_row, (experts.each[n] for n in numbers), strict=True)
            )
            for row, of_row, numbers in zip(hidden, weights, chosen.tolist(), strict=True)
        ]
    )
    transfers, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: transfers.append(self) or tolist(self))
    monkeypatch.setattr(torch.Tensor, "nonzero", None)  # its result's size is read from the device
    torch.testing.assert_close(experts(hidden, chosen, weights), wanted, rtol=1e-5, atol=1e-5)
    assert len(transfers) == 1

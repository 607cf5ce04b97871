"""Experts whose matrices are quantized one by one, in the place of a module with fused experts."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from model_ops.quantization.quantized_linear import QuantizedLinear


class QuantizedExpert(nn.Module):
    """A gated MLP of quantized layers."""

    def __init__(self, gate: QuantizedLinear, up: QuantizedLinear, down: QuantizedLinear):
        super().__init__()
        self.gate, self.up, self.down = gate, up, down


class QuantizedExperts(nn.Module):
    """A mixture's experts; the forward's signature is that of transformers' fused experts.

    act: the activation of the fused experts.
    """

    def __init__(self, experts: list[QuantizedExpert], act: nn.Module):
        super().__init__()
        self.each = nn.ModuleList(experts)
        self.act = act

    def forward(self, hidden_states: Float[Tensor, "tokens hidden"], top_k_index: Int[Tensor, "tokens top_k"],
                top_k_weights: Float[Tensor, "tokens top_k"]) -> Float[Tensor, "tokens hidden"]:
        output = torch.zeros_like(hidden_states)
        for number in top_k_index.unique().tolist():
            token, slot = (top_k_index == number).nonzero(as_tuple=True)
            expert, entered = self.each[number], hidden_states[token]
            made = expert.down(self.act(expert.gate(entered)) * expert.up(entered))
            output.index_add_(0, token, (made * top_k_weights[token, slot, None]).to(output.dtype))
        return output

"""Experts whose matrices are quantized one by one, in the place of a module with fused experts."""

from __future__ import annotations

import itertools

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
        tokens, top_k = top_k_index.shape
        expert, order = top_k_index.reshape(-1).sort(stable=True)
        ends = torch.bincount(expert, minlength=len(self.each)).cumsum(0).tolist()  # the layer's only transfer to the host
        rows = hidden_states[order // top_k]
        made = torch.cat([self._computed(number, rows[start:end])
                          for number, (start, end) in enumerate(itertools.pairwise([0, *ends])) if start < end])
        made = made * top_k_weights.reshape(-1)[order, None]
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return made[back].view(tokens, top_k, -1).sum(1).to(hidden_states.dtype)

    def _computed(self, number: int, rows: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows hidden"]:
        expert = self.each[number]
        return expert.down(self.act(expert.gate(rows)) * expert.up(rows))

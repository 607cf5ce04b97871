"""Experts computed one by one from matrices of their own, in the place of a module with fused experts.

SeparateExperts([Expert(gate, up, down), ...], act)         # of any Linear layers: quantized, rounded or float
with separated(model, layers.experts) as mixtures:          # float layers that share the fused weights
    mixtures["model.layers.0.mlp.experts"].each[3].down.weight
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

PARTS = ("gate", "up", "down")
"""Layers of an expert, in the order in which `BlockLayers.experts` names them."""


EACH = ".each."
"""Part of an expert layer's name between the mixture's name and the expert's number."""


class Expert(nn.Module):
    """A gated MLP."""

    def __init__(self, gate: nn.Module, up: nn.Module, down: nn.Module):
        super().__init__()
        self.gate, self.up, self.down = gate, up, down


class SeparateExperts(nn.Module):
    """A mixture's experts; the forward's signature is that of transformers' fused experts.

    act: the activation of the fused experts. watch: called with the hidden states and the experts of each token before they
    are computed.
    """

    def __init__(self, experts: list[Expert], act: nn.Module):
        super().__init__()
        self.each = nn.ModuleList(experts)
        self.act = act
        self.watch: Callable[[Tensor, Tensor], None] | None = None

    def forward(
        self,
        hidden_states: Float[Tensor, "tokens hidden"],
        top_k_index: Int[Tensor, "tokens top_k"],
        top_k_weights: Float[Tensor, "tokens top_k"],
    ) -> Float[Tensor, "tokens hidden"]:
        if self.watch is not None:
            self.watch(hidden_states, top_k_index)
        tokens, top_k = top_k_index.shape
        expert, order = top_k_index.reshape(-1).sort(stable=True)
        numbers = torch.arange(len(self.each), device=expert.device)
        ends = torch.searchsorted(expert, numbers, right=True).tolist()  # the layer's only transfer to the host
        rows = hidden_states[order // top_k]
        outputs = torch.cat(
            [
                self.each[number].down(self.inner(number, rows[start:end]))
                for number, (start, end) in enumerate(itertools.pairwise([0, *ends]))
                if start < end
            ]
        )
        outputs = outputs * top_k_weights.reshape(-1)[order, None]
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return outputs[back].view(tokens, top_k, -1).sum(1).to(hidden_states.dtype)

    def inner(self, number: int, rows: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows width"]:
        """Input of an expert's down projection."""
        expert = self.each[number]
        return self.act(expert.gate(rows)) * expert.up(rows)


@contextmanager
def separated(model: nn.Module, names: Iterable[str]) -> Iterator[dict[str, SeparateExperts]]:
    """Puts separate experts into the place of modules with fused ones, by name, and the fused ones back at the end. Weights are
    shared: what is written into one form is in the other."""
    fused = {name: model.get_submodule(name) for name in names}
    separate = {name: _separate(module) for name, module in fused.items()}
    try:
        for name, module in separate.items():
            model.set_submodule(name, module)
        yield separate
    finally:
        for name, module in fused.items():
            model.set_submodule(name, module)


def _separate(fused: nn.Module) -> SeparateExperts:
    width = fused.down_proj.shape[2]
    return SeparateExperts(
        [
            Expert(_linear(both[:width]), _linear(both[width:]), _linear(down))
            for both, down in zip(fused.gate_up_proj.detach(), fused.down_proj.detach(), strict=True)
        ],
        fused.act_fn,
    )


def _linear(weight: Float[Tensor, "out in"]) -> nn.Linear:
    """A layer with this weight, not a copy of it."""
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer

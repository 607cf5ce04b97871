"""What every expert of a mixture reads on calibration rows, one expert after another.

    for expert in experts_of(block):               # a Block with the layers of one expert: gate, up, down
        expert.inputs()

An expert reads the tokens that the router sends to it, which are what it computes with when it is served. Routers send few
tokens, or none, to some experts on a few hundred rows, and the moment of fewer tokens than inputs says nothing of most
directions. So an expert with fewer than `TOKENS_PER_INPUT` tokens for each of its inputs is shown other tokens as well, evenly
spread over all of them, until it has as many. What goes on to the next block is what the router chose. (llm-compressor's
`moe_calibrate_all_experts` shows every token to every expert.)

Memory holds what the mixture reads, as many values as the hidden states of the walk, and the moments of one expert.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from model_ops.calibration.walk import SAMPLED_ROWS, Block, Inputs, add_products
from model_ops.quantization.separate_experts import EACH, PARTS, SeparateExperts

TOKENS_PER_INPUT = 4
"""Fewest tokens for each input of an expert."""
ROWS_AT_ONCE = 4_096
"""Tokens whose products are summed in their own dtype."""


@dataclass
class ExpertBlock(Block):
    """One expert as a block of its own that is not run. mixture, number: which one of the parent's."""

    parent: Block | None = None
    mixture: str = ""
    number: int = 0

    def inputs(self) -> dict[str, Inputs]:
        if self._inputs is None:
            self._inputs = self._found()
        return self._inputs

    def _found(self) -> dict[str, Inputs]:
        mixture, read = self.parent.mixtures[self.mixture], self.parent.routed(self.mixture)
        shown = tokens_shown(torch.cat([chosen for _, chosen in read]), self.number, fewest_tokens(mixture))
        stride = -(-int(shown.sum()) // SAMPLED_ROWS)
        outer, inner = _Sums(self.with_moments, stride), _Sums(self.with_moments, stride)
        for (hidden, _), mask in zip(read, shown.split([len(hidden) for hidden, _ in read]), strict=True):
            for rows in hidden[mask].split(ROWS_AT_ONCE):
                if len(rows):
                    outer.add(rows)
                    inner.add(mixture.inner(self.number, rows))
        gate, up, down = (f"{self.prefix}{part}" for part in PARTS)
        of_hidden = outer.inputs()
        return {gate: of_hidden, up: of_hidden, down: inner.inputs()}


def experts_of(block: Block) -> Iterator[ExpertBlock]:
    """The experts of a block's mixtures, each with its layers by their names in the model."""
    for name, mixture in block.mixtures.items():
        for number, expert in enumerate(mixture.each):
            prefix = f"{name}{EACH}{number}."
            layers = {f"{prefix}{part}": getattr(expert, part) for part in PARTS}
            yield ExpertBlock(block.index, expert, layers, (), prefix, block.with_moments, parent=block, mixture=name,
                              number=number)


def fewest_tokens(mixture: SeparateExperts) -> int:
    """Tokens that each expert is shown at least, where there are as many."""
    return TOKENS_PER_INPUT * max(mixture.each[0].gate.in_features, mixture.each[0].down.in_features)


def tokens_shown(chosen: Int[Tensor, "tokens top_k"], expert: int, fewest: int) -> Bool[Tensor, " tokens"]:
    """The tokens that an expert is shown: those that the router sends to it, and evenly spread others up to `fewest`."""
    shown = (chosen == expert).any(-1)
    others = (~shown).nonzero()[:, 0]
    more = min(fewest - int(shown.sum()), len(others))
    if more > 0:
        shown[others[torch.linspace(0, len(others) - 1, more, device=others.device).long()]] = True
    return shown


class _Sums:
    """Second moments and ranges of rows that come in parts, and every `stride`-th row."""

    def __init__(self, with_moments: bool, stride: int):
        self.with_moments, self.stride, self.count = with_moments, stride, 0
        self.total: Tensor | None = None
        self.largest: Tensor | None = None
        self.sample: list[Tensor] = []

    def add(self, rows: Float[Tensor, "tokens in"]) -> None:
        largest = rows.abs().amax(0).float()
        self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)
        self.sample.append(rows[-self.count % self.stride::self.stride].clone())
        self.count += len(rows)
        if self.with_moments:
            if self.total is None:
                self.total = torch.zeros(rows.shape[1], rows.shape[1], device=rows.device)
            add_products(self.total, rows)

    def inputs(self) -> Inputs:
        moment = (self.total.triu() + self.total.triu(1).T) / self.count if self.with_moments else None
        return Inputs(moment, self.largest, torch.cat(self.sample))

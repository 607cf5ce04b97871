"""What every expert of a mixture reads on calibration rows, one expert after another. An expert with fewer than
`TOKENS_PER_INPUT` routed tokens for each input is shown others as well, evenly spread, since the moment of few tokens says
nothing of most directions. What goes on to the next block is what the router chose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from model_ops.calibration.layer_inputs import SAMPLED_ROWS, Inputs, add_products, largest_of_all, moment
from model_ops.calibration.walk import WalkBlock
from model_ops.parallel import World
from model_ops.quantization import EACH, PARTS, SeparateExperts

TOKENS_PER_INPUT = 4
"""Fewest tokens for each input of an expert."""
ROWS_AT_ONCE = 4_096
"""Tokens whose products are summed in their own dtype."""


@dataclass
class ExpertBlock(WalkBlock):
    """One expert as a block of its own that is not run."""

    parent: WalkBlock = field(kw_only=True)
    mixture: str = field(kw_only=True)
    number: int = field(kw_only=True)
    """mixture, number: the mixture of the parent, and the expert's number in it."""

    def inputs(self) -> dict[str, Inputs]:
        if self._inputs is None:
            self._inputs = self._read()
        return self._inputs

    def _read(self) -> dict[str, Inputs]:
        mixture, read = self.parent.mixtures[self.mixture], self.parent.routed(self.mixture)
        chosen = self.parent.chosen(self.mixture)
        shown = tokens_shown(torch.cat([each.experts for each in chosen]), self.number, fewest_tokens(mixture))
        count, seen = int(shown.sum()), 0
        gate, up, down = (f"{self.prefix}{part}" for part in PARTS)
        outer, inner = (_Sums(self.layers[layer], count, self.with_moments) for layer in (gate, down))
        for run, mask in zip(chosen, shown.split([len(each.experts) for each in chosen]), strict=True):
            if run.rank == self.world.rank:
                self._add(outer, inner, read[run.number][0][mask], seen)
            seen += int(mask.sum())
        of_hidden = outer.inputs(gate, self.world)
        return {gate: of_hidden, up: of_hidden, down: inner.inputs(down, self.world)}

    def _add(self, outer: _Sums, inner: _Sums, hidden: Tensor, before: int) -> None:
        for rows in hidden.split(ROWS_AT_ONCE):
            if len(rows):
                rows = rows.to(self.device)
                outer.add(rows, before)
                inner.add(self.parent.mixtures[self.mixture].inner(self.number, rows), before)
            before += len(rows)


def experts_of(block: WalkBlock) -> Iterator[ExpertBlock]:
    """The experts of a block's mixtures, each with its layers by their names in the model."""
    for name, mixture in block.mixtures.items():
        for number, expert in enumerate(mixture.each):
            prefix = f"{name}{EACH}{number}."
            layers = {f"{prefix}{part}": getattr(expert, part) for part in PARTS}
            yield ExpertBlock(
                block.index,
                expert,
                layers,
                (),
                block.trial,
                prefix,
                block.batches,
                block.world,
                block.device,
                block.with_moments,
                parent=block,
                mixture=name,
                number=number,
            )


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
    """Second moments and ranges of the `count` rows of all processes that a layer reads, and evenly spread ones of them."""

    def __init__(self, layer: nn.Linear, count: int, with_moments: bool):
        self.layer, self.count, self.stride = layer, count, -(-count // SAMPLED_ROWS)
        width, device = layer.in_features, layer.weight.device
        side = width if with_moments else 0
        self.total = torch.zeros(side, side, dtype=torch.float64, device=device)
        self.largest = torch.zeros(width, device=device)
        self.sample = torch.zeros(-(-count // self.stride), width, device=device)

    def add(self, rows: Float[Tensor, "tokens in"], before: int) -> None:
        """before: rows of all processes that come before these."""
        torch.maximum(self.largest, rows.abs().amax(0).float(), out=self.largest)
        sampled = rows[-before % self.stride :: self.stride]
        first = -(-before // self.stride)
        self.sample[first : first + len(sampled)] = sampled
        if len(self.total):
            add_products(self.total, rows)

    def inputs(self, name: str, world: World) -> Inputs:
        largest = largest_of_all(self.largest, name, world)
        total, self.total = self.total, self.total[:0]
        return Inputs(
            moment(world.total(total), self.count) if len(total) else None,
            largest,
            world.total(self.sample).to(self.layer.weight.dtype),
        )

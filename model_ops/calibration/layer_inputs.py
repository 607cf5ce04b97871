"""What each Linear layer of a block reads on calibration rows. Moments are summed in float64 and rounded once, so the result
does not depend on how processes share out the rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Float32, Float64, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from model_ops.jobs import ModelError
from model_ops.parallel import World
from model_ops.quantization import SeparateExperts

SMALLEST_STRIP, MOST_STRIPS = 256, 8
"""Rows of a second moment that are added to at a time, and most parts of it: eight strips take 36/64 of all products."""

SAMPLED_ROWS = 512
"""Inputs of a layer that are kept as they are, spread evenly over all tokens."""


@dataclass(frozen=True)
class Inputs:
    """What a layer reads on all calibration rows: E[x x^T], each input's largest absolute value, and some of the rows."""

    moment: Float32[Tensor, "in in"] | None
    """None if the walk leaves moments out."""
    largest: Float32[Tensor, " in"]
    sample: Float[Tensor, "rows in"]


Routed = list[tuple[Float[Tensor, "tokens hidden"], Int[Tensor, "tokens top_k"]]]
"""Hidden states that a mixture read, and the experts that the router chose for each, run by run."""


class RouterChoice(NamedTuple):
    """The router's choices in one run."""

    place: int
    """Number of the run among all runs."""
    rank: int
    number: int
    """Number of the run on process `rank`."""
    experts: Int[Tensor, "tokens top_k"]


class InputsComplete(Exception):
    """Raised once every layer has read its inputs: the rest of the block need not run."""


class WatchedInputs:
    """Adds up what each layer reads while a block runs, and keeps what mixtures read. sampled: rows of a run that are kept.
    places: number of each of this process's runs among all."""

    def __init__(
        self,
        layers: dict[str, nn.Linear],
        mixtures: dict[str, SeparateExperts],
        sampled: int,
        with_moments: bool,
        places: Sequence[int],
        world: World,
    ):
        self.layers, self.mixtures, self.sampled, self.with_moments = layers, mixtures, sampled, with_moments
        self.places, self.world = places, world
        self.routed: dict[str, Routed] = {name: [] for name in mixtures}
        self.routed_places: dict[str, list[int]] = {name: [] for name in mixtures}
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.leaders: dict[str, str] = {}
        self.hooks: list[RemovableHandle] = []
        self.largest: dict[str, Tensor] = {}
        self.samples: dict[str, list[tuple[int, Tensor]]] = {}
        self._read: list[tuple[Tensor, str]] = []
        self._calls, self._once, self._run = dict.fromkeys((*layers, *mixtures), 0), False, 0

    def __enter__(self) -> None:
        for name, layer in self.layers.items():
            self.hooks.append(layer.register_forward_pre_hook(lambda module, given, name=name: self._seen(name, given[0])))
        for name, mixture in self.mixtures.items():
            mixture.watch = partial(self._chosen, name)

    def __exit__(self, *_) -> None:
        for hook in self.hooks:
            hook.remove()
        for mixture in self.mixtures.values():
            mixture.watch = None
        self._read.clear()

    def next_run(self) -> None:
        """A run has ended. If each layer read once in it, a later one may end when all of them have."""
        self._once = set(self._calls.values()) == {1}
        self._calls = dict.fromkeys(self._calls, 0)
        self._read.clear()
        self._run += 1

    def _seen(self, name: str, inputs: Tensor) -> None:
        self._add(name, inputs)
        self._called(name)

    def _chosen(self, name: str, hidden: Tensor, experts: Tensor) -> None:
        self.routed[name].append((hidden.cpu(), experts.cpu()))
        self.routed_places[name].append(self.places[self._run])
        self._called(name)

    def _called(self, name: str) -> None:
        self._calls[name] += 1
        if self._once and all(self._calls.values()):
            raise InputsComplete

    def _add(self, name: str, inputs: Tensor) -> None:
        leader = next((other for tensor, other in self._read if tensor is inputs), None)
        self._read = [*self._read[-8:], (inputs, name)] if leader is None else self._read
        if leader is not None and self.leaders.setdefault(name, leader) == leader:
            return
        if name in self.leaders and leader is None:  # read another tensor than its leader this time: it counts for itself
            self._counts_for_itself(name)
        flat = inputs.reshape(-1, inputs.shape[-1])
        if name not in self.sums:
            self._begin(name, flat.shape[1], flat.device)
        if self.with_moments:
            add_products(self.sums[name], flat)
        self.counts[name] += len(flat)
        torch.maximum(self.largest[name], flat.abs().amax(0).float(), out=self.largest[name])
        places = torch.linspace(0, len(flat) - 1, min(len(flat), self.sampled), device=flat.device).long()
        self.samples[name].append((self.places[self._run], flat[places].clone()))

    def _begin(self, name: str, width: int, device: torch.device) -> None:
        side = width if self.with_moments else 0
        self.sums[name] = torch.zeros(side, side, dtype=torch.float64, device=device)
        self.largest[name] = torch.zeros(width, device=device)
        self.counts[name], self.samples[name] = 0, []

    def _counts_for_itself(self, name: str) -> None:
        first = self.leaders.pop(name)
        self.sums[name], self.counts[name] = self.sums[first].clone(), self.counts[first]
        self.largest[name], self.samples[name] = self.largest[first].clone(), list(self.samples[first])

    def inputs(self) -> dict[str, Inputs]:
        """What the layers read in the runs of all processes; the sums are used up. Raises ModelError where a layer reads values
        that are not finite."""
        self._agree()
        own = {name: self._total(name) for name in sorted(self.sums)}
        return {**own, **{name: own[leader] for name, leader in self.leaders.items()}}

    def chosen(self) -> dict[str, list[RouterChoice]]:
        """What the routers chose in the runs of all processes, in the order of the runs."""
        own = {
            name: [
                RouterChoice(place, self.world.rank, number, experts)
                for number, (place, (_, experts)) in enumerate(zip(places, self.routed[name], strict=True))
            ]
            for name, places in self.routed_places.items()
        }
        every = self.world.gather(own) if self.mixtures else []
        return {
            name: sorted((each for of_rank in every for each in of_rank[name]), key=lambda each: each[:3])
            for name in self.mixtures
        }

    def _agree(self) -> None:
        """Makes all processes count the same layers for themselves: those that do on any."""
        if self.world.size == 1:
            return
        known = self.world.gather((list(self.sums), self.leaders))
        pairs = {pair for _, leaders in known for pair in leaders.items()}
        followers = [name for name, _ in pairs]
        own = {name for names, _ in known for name in names} | {name for name in followers if followers.count(name) > 1}
        for name in own:
            if name in self.leaders:
                self._counts_for_itself(name)
            elif name not in self.sums:
                self._begin(name, self.layers[name].in_features, self.layers[name].weight.device)
        self.leaders = {name: leader for name, leader in pairs if name not in own}

    def _total(self, name: str) -> Inputs:
        largest = largest_of_all(self.largest.pop(name), name, self.world)
        total, (count,) = self.world.total(self.sums.pop(name)), self.world.totals([self.counts[name]])
        return Inputs(moment(total, max(1.0, count)) if self.with_moments else None, largest, self._sample(name))

    def _sample(self, name: str) -> Tensor:
        """The sampled rows of all processes, in the order of the runs."""
        own, layer = self.samples.pop(name), self.layers[name]
        if self.world.size == 1:
            return torch.cat([rows for _, rows in own])
        sizes = [
            (place, number, rank, count)
            for rank, runs in enumerate(self.world.gather([(place, len(rows)) for place, rows in own]))
            for number, (place, count) in enumerate(runs)
        ]
        sample, start = torch.zeros(sum(count for *_, count in sizes), layer.in_features, device=layer.weight.device), 0
        for _, number, rank, count in sorted(sizes):
            if rank == self.world.rank:
                sample[start : start + count] = own[number][1]
            start += count
        return self.world.total(sample).to(layer.weight.dtype)  # exact: a row is 0 on all processes but one


def largest_of_all(largest: Float32[Tensor, " in"], layer: str, world: World) -> Float32[Tensor, " in"]:
    """The largest absolute inputs of a layer on all processes. Raises ModelError where they are not finite."""
    largest = torch.nan_to_num(largest, nan=torch.inf)  # a maximum over processes may lose a nan
    if world.size > 1:
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    if not torch.isfinite(largest).all():
        raise ModelError(
            f"{layer} reads values that are not finite on the calibration rows: train the model again, or set "
            "quantize.method to rtn, which needs no rows"
        )
    return largest


def add_products(total: Float64[Tensor, "in in"], rows: Float[Tensor, "tokens in"]) -> None:
    """Adds x x^T of all rows to the upper triangle of `total`, in strips; what is below the diagonal is not used. Products are
    of the rows' dtype: a sum over the rows of one batch is rounded to it. The error of bfloat16, 2^-9 of an entry for each
    batch, is far below GPTQ's damping and several times as fast."""
    width = len(total)
    strip = max(SMALLEST_STRIP, -(-width // MOST_STRIPS))
    for first in range(0, width, strip):
        total[first : first + strip, first:].add_(rows[:, first : first + strip].T @ rows[:, first:])


def moment(total: Float64[Tensor, "in in"], count: float) -> Float32[Tensor, "in in"]:
    """The symmetric matrix of an upper triangle, over the number of rows."""
    width, matrix = len(total), torch.empty(total.shape, device=total.device)
    strip = max(SMALLEST_STRIP, -(-width // MOST_STRIPS))
    for first in range(0, width, strip):
        last = min(first + strip, width)
        rows = (total[first:last, first:] / count).float()
        rows[:, : last - first] = rows[:, : last - first].triu() + rows[:, : last - first].triu(1).T
        matrix[first:last, first:] = rows
        matrix[first:, first:last] = rows.T
    return matrix

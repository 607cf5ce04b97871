"""A scheme for each layer, chosen by what it costs: the model is to say what its float form says, within a size.

    units = units_of(layers)                                         # layers that servers join have one scheme
    costs = unit_costs(model, layers, units, options, taught)        # [units, options], nats per target token
    chosen = cheapest(sizes, costs, room)                                   # an option for each unit

Cost of an option is the divergence of the model with only this unit rounded so, to the nearest, from the float model on
calibration rows. Costs of units add up where errors are small, so the chosen options minimise the sum. `cheapest` takes the
smallest option everywhere and then, as long as there is room, the step that saves most divergence per byte, among the steps on
the lower convex hull of each unit's options: no other choice of as many bytes is better, but for what the last step that does
not fit leaves free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise

import torch
from torch import nn

from model_ops.objectives.row_divergences import mean_divergence, row_divergences
from model_ops.quantization.block_layers import BlockLayers
from model_ops.quantization.fused_layers import fused_layers
from model_ops.quantization.scheme import Scheme
from model_ops.quantization.separate_experts import EACH, PARTS, separated
from model_ops.quantization.straight_through import compute_rounded, served_layer
from model_ops.tensor_files import TORCH_NAMES
from model_ops.training.documents import Document

Unit = list[str]
"""Layers, by their names in the checkpoint, that have one scheme."""


def units_of(layers: BlockLayers) -> list[Unit]:
    """The layers in groups that servers join, and all experts of a module: servers compute these in one product, and vLLM
    refuses experts of several schemes (compressed_tensors_moe.py)."""
    return [*fused_layers(layers.linear), *(list(chain(*experts)) for experts in layers.experts.values())]


def stored_bytes(shape: tuple[int, int], scheme: Scheme | None) -> int:
    """Bytes of a layer's stored tensors; None: bfloat16. Raises ModelError if the scheme cannot store the shape."""
    if scheme is None:
        return 2 * shape[0] * shape[1]
    total = 0
    for dtype, size in scheme.stored(*shape).values():
        count = 1
        for length in size:
            count *= length
        total += count * getattr(torch, TORCH_NAMES[dtype]).itemsize
    return total


@torch.no_grad()
def unit_costs(model: nn.Module, layers: BlockLayers, units: Sequence[Unit], options: Sequence[Scheme | None],
               taught: Sequence[Document], after_unit: Callable[[int, int], None] | None = None,
               known: dict[str, list[float]] | None = None) -> list[list[float]]:
    """Divergence in nats per target token of each unit with each option alone; 0 for None, which leaves it as it is.

    taught: documents with the float model's cached distributions. known: costs by
    the name of a unit's first layer, of a run that was stopped; new ones are added. after_unit(units done, units in all).
    """
    known = {} if known is None else known
    modules = layers.modules
    for done, unit in enumerate(units, start=1):
        if unit[0] not in known:
            known[unit[0]] = [_cost(model, [modules[layer] for layer in unit], option, taught) for option in options]
        if after_unit is not None:
            after_unit(done, len(units))
    return [known[unit[0]] for unit in units]


def _cost(model: nn.Module, modules: Sequence[str], scheme: Scheme | None, taught: Sequence[Document]) -> float:
    if scheme is None:
        return 0.0
    if any(EACH in name for name in modules):
        with _rounded_experts(model, modules[0].partition(EACH)[0], scheme):
            return mean_divergence(row_divergences(model, taught))
    before = {name: model.get_submodule(name) for name in modules}
    compute_rounded(model, modules, scheme)
    try:
        return mean_divergence(row_divergences(model, taught))
    finally:
        for name, module in before.items():
            model.set_submodule(name, module)


@contextmanager
def _rounded_experts(model: nn.Module, mixture: str, scheme: Scheme) -> Iterator[None]:
    """All experts of a module as the scheme's own layers, which round once for all rows."""
    with separated(model, [mixture]) as mixtures:
        for expert in mixtures[mixture].each:
            for part in PARTS:
                weight = getattr(expert, part).weight
                stored = scheme.load_layer().encode(weight.float())
                setattr(expert, part, served_layer(scheme, stored, tuple(weight.shape), None, weight.dtype))
        yield


def cheapest(sizes: Sequence[Sequence[int]], costs: Sequence[Sequence[float]], room: int) -> list[int] | None:
    """The option of each unit with the lowest summed cost in at most `room` bytes; None if the smallest ones do not fit.

    sizes, costs: [units, options] in bytes and nats.
    """
    paths = [_hull(unit_sizes, unit_costs) for unit_sizes, unit_costs in zip(sizes, costs, strict=True)]
    chosen = [path[0] for path in paths]
    left = room - sum(sizes[unit][option] for unit, option in enumerate(chosen))
    if left < 0:
        return None
    steps = []
    for unit, path in enumerate(paths):
        for before, after in pairwise(path):
            more = sizes[unit][after] - sizes[unit][before]
            steps.append(((costs[unit][before] - costs[unit][after]) / more, unit, before, after, more))
    for _, unit, before, after, more in sorted(steps, key=lambda step: -step[0]):
        if chosen[unit] == before and more <= left:
            chosen[unit], left = after, left - more
    return chosen


def _hull(sizes: Sequence[int], costs: Sequence[float]) -> list[int]:
    """Options on the lower convex hull of (size, cost), from the smallest on, each with a lower cost than the one before."""
    path: list[int] = []
    for option in sorted(range(len(sizes)), key=lambda option: (sizes[option], costs[option])):
        if path and (sizes[option] == sizes[path[-1]] or costs[option] >= costs[path[-1]]):
            continue
        while len(path) > 1 and _slope(sizes, costs, path[-2], path[-1]) <= _slope(sizes, costs, path[-1], option):
            path.pop()
        path.append(option)
    return path


def _slope(sizes: Sequence[int], costs: Sequence[float], first: int, second: int) -> float:
    """Divergence that is saved per byte."""
    return (costs[first] - costs[second]) / (sizes[second] - sizes[first])

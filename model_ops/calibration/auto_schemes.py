"""`quantize.scheme: auto`: chooses each layer's scheme for the least divergence from the float model within a budget, a share
of the bytes in bfloat16. A unit's divergence is that of the model with only this unit rounded; costs add up where errors are
small. `cheapest` takes the smallest option everywhere, then the steps on the convex hull that save most divergence per byte."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from model_ops.documents import Document
from model_ops.files import TORCH_NAMES, TensorHeader, write_json
from model_ops.jobs import ModelError, Progress
from model_ops.objectives import TeacherCache, mean_divergence, row_divergences
from model_ops.quantization import EACH, PARTS, BlockLayers, Scheme, compute_rounded, fused_layers, served_layer, unfuse
from model_ops.training import first_documents

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
def unit_costs(
    model: nn.Module,
    layers: BlockLayers,
    units: Sequence[Unit],
    options: Sequence[Scheme | None],
    taught: Sequence[Document],
    after_unit: Callable[[int, int], None] | None = None,
    known: dict[str, list[float]] | None = None,
) -> list[list[float]]:
    """Divergence in nats per target token of each unit with each option alone; 0 for None, which leaves it as it is. taught:
    documents with the float model's cached distributions. known: costs by the name of a unit's first layer, of a run that was
    stopped; new ones are added. after_unit(units done, units in all)."""
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
    with unfuse(model, [mixture]) as mixtures:
        for expert in mixtures[mixture].each:
            for part in PARTS:
                weight = getattr(expert, part).weight
                stored = scheme.load_layer().encode(weight.float())
                setattr(expert, part, served_layer(scheme, stored, tuple(weight.shape), None, weight.dtype))
        yield


def cheapest(sizes: Sequence[Sequence[int]], costs: Sequence[Sequence[float]], room: int) -> list[int] | None:
    """The option of each unit with the lowest summed cost in at most `room` bytes; None if the smallest ones do not fit. sizes,
    costs: [units, options] in bytes and nats."""
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


MEASURED_TOKENS, TOP_K = 8_192, 128
FEWEST_BYTES = 2
"""Bytes of a value in bfloat16."""


@dataclass(frozen=True)
class AutoPlan:
    """Schemes to choose from and the sizes that bound the choice."""

    layers: BlockLayers
    units: list[Unit]
    options: list[Scheme | None]
    """Schemes; None stands for bfloat16."""
    sizes: list[list[int]]
    """Bytes of each unit with each option."""
    room: int
    """Most bytes of all units."""
    rest: int
    """Bytes of tensors that are not quantized."""
    whole: int
    """Bytes of the model in bfloat16."""

    @classmethod
    def of(
        cls, layers: BlockLayers, headers: Mapping[str, TensorHeader], options: Sequence[Scheme | None], budget: float
    ) -> AutoPlan:
        """Raises ModelError for a layer that no option can store, and for a budget that the smallest options exceed, with the
        nearest one."""
        units = units_of(layers)
        fitting = [
            option for option in options if all(_stores(option, layers.matrices[layer]) for unit in units for layer in unit)
        ]
        if not any(option is not None for option in fitting):
            names = ", ".join(option.name for option in options if option is not None)
            raise ModelError(
                f"no candidate ({names}) can store every layer of this model: add w8a8 or w8a16_channel to quantize.candidates"
            )
        sizes = [[sum(stored_bytes(layers.matrices[layer], option) for layer in unit) for option in fitting] for unit in units]
        quantized = {f"{layer}.weight" for unit in units for layer in unit}
        values = {name: math.prod(header.shape) for name, header in headers.items()}
        rest = FEWEST_BYTES * sum(count for name, count in values.items() if name not in quantized)
        whole = FEWEST_BYTES * sum(values.values())
        plan = cls(layers, units, fitting, sizes, int(budget * whole) - rest, rest, whole)
        least = rest + sum(map(min, sizes))
        if plan.room < sum(map(min, sizes)):
            nearest = math.ceil(1e3 * least / whole) / 1e3
            raise ModelError(
                f"no choice of schemes meets the budget {budget:g}: embeddings and all else that is not quantized "
                f"are {rest / whole:.3f} of the model, and the nearest budget is {nearest:g}"
            )
        return plan

    def choose(
        self, model: nn.Module, documents: Sequence[Document], folder: Path, progress: Progress
    ) -> tuple[dict[str, Scheme], dict[str, Any]]:
        """The scheme of each layer, and the numbers to report. folder keeps costs for a run that continues."""
        measured = first_documents(documents, MEASURED_TOKENS)
        cache = TeacherCache.write(folder / "float", model, measured, TOP_K, 1.0, "float32")
        taught = [cache.added_to(document, index) for index, document in enumerate(measured)]
        file = folder / "costs.json"
        known = json.loads(file.read_text()) if file.exists() else {}

        def after_unit(done: int, total: int) -> None:
            write_json(file, known)
            progress.report("sensitivity", done, total, "units")
            progress.stop_if_requested()

        costs = unit_costs(model, self.layers, self.units, self.options, taught, after_unit, known)
        chosen = cheapest(self.sizes, costs, self.room)
        if chosen is None:
            raise ValueError(f"{self.room} bytes hold no choice of schemes, which `of` refuses")
        by_unit = [(unit, self.options[option]) for unit, option in zip(self.units, chosen, strict=True)]
        schemes = {layer: scheme for unit, scheme in by_unit if scheme is not None for layer in unit}
        spent = self.rest + sum(sizes[option] for sizes, option in zip(self.sizes, chosen, strict=True))
        names = [getattr(self.options[option], "name", "float") for option in chosen]
        costliest = max(range(len(costs)), key=lambda unit: costs[unit][chosen[unit]])
        return schemes, {
            "bfloat16_share": spent / self.whole,
            "summed_divergence": sum(cost[option] for cost, option in zip(costs, chosen, strict=True)),
            "units_by_scheme": {name: names.count(name) for name in dict.fromkeys(sorted(names))},
            "costliest_layer": self.units[costliest][0],
            "costliest_layer_divergence": costs[costliest][chosen[costliest]],
        }


def _stores(option: Scheme | None, shape: tuple[int, int]) -> bool:
    try:
        return stored_bytes(shape, option) > 0
    except ModelError:
        return False

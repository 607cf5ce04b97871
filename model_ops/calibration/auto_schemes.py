"""`quantize.scheme: auto`: which layers get which scheme, within a budget of bytes.

    plan = AutoPlan.of(layers, headers, options, budget=0.4)          # ModelError if nothing fits, before rows are read
    schemes, told = plan.choose(model, documents, folder, progress)   # layer -> Scheme; layers that stay bfloat16 are absent

The budget is the share of the released weights' bytes, embeddings and all that is not quantized included, of the bytes that the
same tensors take in bfloat16.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from model_ops.atomic_files import write_json
from model_ops.calibration.mixed_precision import Unit, cheapest, stored_bytes, unit_costs, units_of
from model_ops.errors import ModelError
from model_ops.objectives.teacher_cache import TeacherCache
from model_ops.progress import Progress
from model_ops.quantization.block_layers import BlockLayers
from model_ops.quantization.scheme import Scheme
from model_ops.tensor_files import TensorHeader
from model_ops.training.documents import Document
from model_ops.training.validation import first_documents

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
    def of(cls, layers: BlockLayers, headers: Mapping[str, TensorHeader], options: Sequence[Scheme | None],
           budget: float) -> AutoPlan:
        """Raises ModelError for a layer that no option can store, and for a budget that the smallest options exceed, with the
        nearest one."""
        units = units_of(layers)
        fitting = [option for option in options if all(_stores(option, layers.matrices[layer])
                                                       for unit in units for layer in unit)]
        if not any(option is not None for option in fitting):
            names = ", ".join(option.name for option in options if option is not None)
            raise ModelError(f"no candidate ({names}) can store every layer of this model: add w8a8 or w8a16_channel to "
                             "quantize.candidates")
        sizes = [[sum(stored_bytes(layers.matrices[layer], option) for layer in unit) for option in fitting] for unit in units]
        quantized = {f"{layer}.weight" for unit in units for layer in unit}
        values = {name: math.prod(header.shape) for name, header in headers.items()}
        rest = FEWEST_BYTES * sum(count for name, count in values.items() if name not in quantized)
        whole = FEWEST_BYTES * sum(values.values())
        plan = cls(layers, units, fitting, sizes, int(budget * whole) - rest, rest, whole)
        least = rest + sum(map(min, sizes))
        if plan.room < sum(map(min, sizes)):
            nearest = math.ceil(1e3 * least / whole) / 1e3
            raise ModelError(f"no choice of schemes meets the budget {budget:g}: embeddings and all else that is not quantized "
                             f"are {rest / whole:.3f} of the model, and the nearest budget is {nearest:g}")
        return plan

    def choose(self, model: nn.Module, documents: Sequence[Document], folder: Path,
               progress: Progress) -> tuple[dict[str, Scheme], dict[str, Any]]:
        """The scheme of each layer, and the numbers to report. folder keeps costs for a run that continues."""
        measured = first_documents(documents, MEASURED_TOKENS)
        cache = TeacherCache.write(folder / "float", model, measured, TOP_K, 1.0, "float32")
        taught = [cache.added_to(document, index) for index, document in enumerate(measured)]
        kept = folder / "costs.json"
        known = json.loads(kept.read_text()) if kept.exists() else {}

        def after_unit(done: int, total: int) -> None:
            write_json(kept, known)
            progress.report("sensitivity", done, total, "units")
            progress.stop_if_requested()

        costs = unit_costs(model, self.layers, self.units, self.options, taught, after_unit, known)
        chosen = cheapest(self.sizes, costs, self.room)
        schemes = {layer: self.options[option] for unit, option in zip(self.units, chosen, strict=True) for layer in unit
                   if self.options[option] is not None}
        spent = self.rest + sum(sizes[option] for sizes, option in zip(self.sizes, chosen, strict=True))
        names = [getattr(self.options[option], "name", "float") for option in chosen]
        costliest = max(range(len(costs)), key=lambda unit: costs[unit][chosen[unit]])
        return schemes, {
            "bfloat16_share": spent / self.whole, "summed_divergence": sum(cost[option] for cost, option in zip(
                costs, chosen, strict=True)),
            "units_by_scheme": {name: names.count(name) for name in dict.fromkeys(sorted(names))},
            "costliest_layer": self.units[costliest][0], "costliest_layer_divergence": costs[costliest][chosen[costliest]]}


def _stores(option: Scheme | None, shape: tuple[int, int]) -> bool:
    try:
        return stored_bytes(shape, option) > 0
    except ModelError:
        return False

"""The largest absolute value that each Linear layer reads on calibration rows: for schemes whose activations have a fixed
scale.

    ranges = InputRanges(layers.linear)                     # a watch of model_ops.calibration.walk
    show(model, batches, [ranges])
    ranges.found()
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn
from torch.utils.hooks import RemovableHandle

from model_ops.calibration.walk import Block
from model_ops.errors import ModelError
from model_ops.parallel.world import World


class InputRanges:
    """The largest inputs while blocks advance. linear: layer in the checkpoint -> module."""

    def __init__(self, linear: Mapping[str, str]):
        self.linear = dict(linear)
        self.largest = dict.fromkeys(linear, 0.0)

    def __call__(self, block: Block) -> list[RemovableHandle]:
        def watch(layer: str):
            def seen(module: nn.Module, given: tuple) -> None:
                found = given[0].abs().max().item()
                self.largest[layer] = max(self.largest[layer], found if math.isfinite(found) else math.inf)

            return seen

        return [block.module.get_submodule(block.inner(module)).register_forward_pre_hook(watch(layer))
                for layer, module in self.linear.items() if module.startswith(block.prefix)]

    def found(self, world: World | None = None) -> dict[str, float]:
        """Layer in the checkpoint -> largest absolute input, of the rows of all processes. Raises ModelError if a layer reads
        nothing, or values that are not finite."""
        own = list(self.largest.values())
        largest = dict(zip(self.largest, own if world is None else world.greatest(own), strict=True))
        for layer, value in largest.items():
            if not 0 < value < math.inf:
                raise ModelError(f"{layer} reads no finite values on the calibration rows: choose a scheme without fixed scales "
                                 "of activations, such as nvfp4a16")
        return largest

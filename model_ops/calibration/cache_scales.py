"""Scales of an FP8 key-value cache: the largest absolute key and value of each layer over calibration rows, / 448."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from model_ops.calibration.walk import WalkBlock
from model_ops.jobs import ModelError
from model_ops.parallel import World
from model_ops.quantization import LARGEST, SMALLEST_SCALE, watch_cache


class CacheRanges:
    """The largest keys and values while blocks advance. layers: attention modules."""

    def __init__(self, layers: Sequence[str]):
        self.layers = list(layers)
        self.largest: dict[str, list[Tensor]] = {}
        """On the device, so that no layer waits for it; a NaN stays."""

    def __call__(self, block: WalkBlock) -> list[RemovableHandle]:
        def seen(name: str, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            most, place = [cached.abs().max().float() for cached in (keys, values)], f"{block.prefix}{name}"
            before = self.largest.get(place, most)
            self.largest[place] = [torch.maximum(*pair) for pair in zip(before, most, strict=True)]
            return keys, values

        own = [block.inner(name) for name in self.layers if name.startswith(block.prefix)]
        return watch_cache(block.module, own, seen)

    def scales(self, world: World | None = None) -> dict[str, tuple[float, float]]:
        """Attention module -> (scale of keys, scale of values), of the rows of all processes.

        Raises ModelError if a layer caches nothing, or values that are not finite.
        """
        own = [float(value) for name in self.layers for value in self.largest.get(name, (-1.0, -1.0))]
        own = [math.inf if math.isnan(value) else value for value in own]
        values = own if world is None else world.greatest(own)
        pairs = dict(zip(self.layers, zip(values[::2], values[1::2], strict=True), strict=True))
        for name, pair in pairs.items():
            if not all(0 <= value < math.inf for value in pair):
                raise ModelError(
                    f"{name} caches no finite keys and values on the calibration rows: leave quantize.kv_cache out"
                )
        return {name: tuple(max(value / LARGEST, SMALLEST_SCALE) for value in pair) for name, pair in pairs.items()}

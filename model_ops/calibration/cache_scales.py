"""Scales of an FP8 key-value cache: the largest absolute key and value of each layer over calibration rows, / 448."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from model_ops.batch import Batch
from model_ops.errors import ModelError
from model_ops.quantization.fp8_linear import LARGEST, SMALLEST_SCALE
from model_ops.quantization.kv_cache import watch_cache


@torch.no_grad()
def cache_scales(model: PreTrainedModel, layers: Sequence[str], batches: Sequence[Batch]) -> dict[str, tuple[float, float]]:
    """Attention module -> (scale of keys, scale of values). The model must be loaded with attention="packed".

    Raises ModelError if a layer caches nothing, or values that are not finite.
    """
    largest: dict[str, tuple[float, float]] = {}

    def seen(name: str, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        before = largest.get(name, (0.0, 0.0))
        largest[name] = (max(before[0], keys.abs().max().item()), max(before[1], values.abs().max().item()))
        return keys, values

    hooks = watch_cache(model, layers, seen)
    for batch in batches:
        model.base_model(**batch.model_inputs)
    for hook in hooks:
        hook.remove()
    for name in layers:
        if name not in largest or not all(0 <= value < float("inf") for value in largest[name]):
            raise ModelError(f"{name} caches no finite keys and values on the calibration rows: leave quantize.kv_cache out")
    return {name: tuple(max(value / LARGEST, SMALLEST_SCALE) for value in largest[name]) for name in layers}

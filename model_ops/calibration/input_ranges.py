"""The largest absolute value that each Linear layer reads on calibration rows: for schemes whose activations have a fixed
scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedModel

from model_ops.batch import Batch
from model_ops.errors import ModelError


@torch.no_grad()
def input_ranges(model: PreTrainedModel, linear: Mapping[str, str], batches: Sequence[Batch]) -> dict[str, float]:
    """Layer in the checkpoint -> largest absolute input. linear: layer in the checkpoint -> module. The model must be loaded
    with attention="packed". Raises ModelError if a layer reads nothing, or values that are not finite."""
    largest = dict.fromkeys(linear, 0.0)

    def watch(layer: str):
        def seen(module: torch.nn.Module, given: tuple) -> None:
            largest[layer] = max(largest[layer], given[0].abs().max().item())

        return seen

    hooks = [model.get_submodule(module).register_forward_pre_hook(watch(layer)) for layer, module in linear.items()]
    for batch in batches:
        model.base_model(**batch.model_inputs)
    for hook in hooks:
        hook.remove()
    for layer, found in largest.items():
        if not 0 < found < float("inf"):
            raise ModelError(f"{layer} reads no finite values on the calibration rows: choose a scheme without fixed scales of "
                             "activations, such as nvfp4a16")
    return largest

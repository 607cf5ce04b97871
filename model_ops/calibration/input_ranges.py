"""The largest absolute value that each quantized layer reads on calibration rows: for schemes whose activations have a fixed
scale.

Ranges are there to be wide enough: scales of groups inside them follow the values. So the first layers of all experts have the
range of all tokens, whatever the router chose, and the last layer of an expert to which few tokens are sent is shown others as
well (model_ops.calibration.expert_inputs). Servers that multiply by all experts in one product take the widest range of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from model_ops.batch import Batch
from model_ops.calibration.expert_inputs import fewest_tokens, tokens_shown
from model_ops.errors import ModelError
from model_ops.quantization.block_layers import BlockLayers
from model_ops.quantization.separate_experts import SeparateExperts, separated

UNIT_INPUTS = ("kv_b_proj",)
"""Layers that are given a one at least: vLLM multiplies the identity by them when it loads a model with latent attention
(get_and_maybe_dequant_weights), and a narrower range would cut the ones off."""


@torch.no_grad()
def input_ranges(model: PreTrainedModel, layers: BlockLayers, batches: Sequence[Batch]) -> dict[str, float]:
    """Layer in the checkpoint -> largest absolute input. The model must be loaded with attention="packed". Raises ModelError if
    a layer reads nothing, or values that are not finite."""
    largest = dict.fromkeys(layers.modules, 0.0)

    def seen(names: Sequence[str], values: Tensor) -> None:
        found = values.abs().max().item()
        largest.update({layer: max(largest[layer], found) for layer in names})

    def hooked(layer: str, module: torch.nn.Module, given: tuple) -> None:
        seen([layer], given[0])

    hooks = [model.get_submodule(module).register_forward_pre_hook(partial(hooked, layer))
             for layer, module in layers.linear.items()]
    with separated(model, layers.experts) as mixtures:
        for name, mixture in mixtures.items():
            mixture.watch = partial(_of_experts, mixture, layers.experts[name], len(batches), seen)
        for batch in batches:
            model.base_model(**batch.model_inputs)
    for hook in hooks:
        hook.remove()
    for layer, found in largest.items():
        if not 0 < found < float("inf"):
            raise ModelError(f"{layer} reads no finite values on the calibration rows: choose a scheme without fixed scales of "
                             "activations, such as nvfp4a16")
        if layer.rpartition(".")[2] in UNIT_INPUTS:
            largest[layer] = max(found, 1.0)
    return largest


def _of_experts(mixture: SeparateExperts, names: Sequence[tuple[str, str, str]], batches: int,
                seen: Callable[[Sequence[str], Tensor], None], hidden: Tensor, chosen: Tensor) -> None:
    """What the experts read in one of the batches; each has its share of the fewest tokens in each."""
    share = -(-fewest_tokens(mixture) // batches)
    seen([layer for gate, up, _ in names for layer in (gate, up)], hidden)
    for number, (_, _, down) in enumerate(names):
        seen([down], mixture.inner(number, hidden[tokens_shown(chosen, number, share)]))

"""The largest absolute value that each quantized layer reads on calibration rows: for schemes whose activations have a fixed
scale.

    ranges = InputRanges(layers, len(batches))              # a watch of model_ops.calibration.walk
    show(model, batches, layers.modules.values(), [ranges])
    ranges.found()

Ranges are there to be wide enough: scales of groups inside them follow the values. So the first layers of all experts have the
range of all tokens, whatever the router chose, and the last layer of an expert to which few tokens are sent is shown others as
well (model_ops.calibration.expert_inputs). Servers that multiply by all experts in one product take the widest range of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from model_ops.calibration.expert_inputs import fewest_tokens, tokens_shown
from model_ops.calibration.walk import WalkBlock
from model_ops.jobs import ModelError
from model_ops.parallel import World
from model_ops.quantization import BlockLayers, SeparateExperts

UNIT_INPUTS = ("kv_b_proj",)
"""Layers that are given a one at least: vLLM multiplies the identity by them when it loads a model with latent attention
(get_and_maybe_dequant_weights), and a narrower range would cut the ones off."""


class InputRanges:
    """The largest inputs while blocks advance. batches: how many there are."""

    def __init__(self, layers: BlockLayers, batches: int):
        self.layers, self.batches = layers, batches
        self.largest: dict[str, Tensor] = {}
        """On the device, so that no layer waits for it; a NaN stays."""

    def __call__(self, block: WalkBlock) -> list[RemovableHandle]:
        hooks = [
            block.module.get_submodule(block.inner(module)).register_forward_pre_hook(partial(self._of_layer, layer))
            for layer, module in self.layers.linear.items()
            if module.startswith(block.prefix)
        ]
        for name, mixture in block.mixtures.items():
            watch = partial(self._of_experts, self.layers.experts[name])
            hooks.append(mixture.register_forward_pre_hook(watch, with_kwargs=True))
        return hooks

    def found(self, world: World | None = None) -> dict[str, float]:
        """Layer in the checkpoint -> largest absolute input, of the rows of all processes. Raises ModelError if a layer reads
        nothing, or values that are not finite."""
        own = [float(self.largest.get(layer, 0.0)) for layer in self.layers.modules]
        own = [math.inf if math.isnan(value) else value for value in own]
        largest = dict(zip(self.layers.modules, own if world is None else world.greatest(own), strict=True))
        for layer, value in largest.items():
            if not 0 < value < math.inf:
                raise ModelError(
                    f"{layer} reads no finite values on the calibration rows: choose a scheme without fixed "
                    "scales of activations, such as nvfp4a16"
                )
            if layer.rpartition(".")[2] in UNIT_INPUTS:
                largest[layer] = max(value, 1.0)
        return largest

    def _seen(self, names: Sequence[str], values: Tensor) -> None:
        found = values.abs().max().float()
        self.largest.update({layer: torch.maximum(self.largest.get(layer, found), found) for layer in names})

    def _of_layer(self, layer: str, module: nn.Module, given: tuple) -> None:
        self._seen([layer], given[0])

    def _of_experts(self, names: Sequence[tuple[str, str, str]], mixture: SeparateExperts, given: tuple, named: dict) -> None:
        """What the experts read in one of the batches; each has its share of the fewest tokens in each."""
        named = dict(zip(("hidden_states", "top_k_index"), given, strict=False)) | named
        hidden, share = named["hidden_states"], -(-fewest_tokens(mixture) // self.batches)
        self._seen([layer for gate, up, _ in names for layer in (gate, up)], hidden)
        for number, (_, _, down) in enumerate(names):
            self._seen([down], mixture.inner(number, hidden[tokens_shown(named["top_k_index"], number, share)]))

"""Which layers of a model matter least for given documents: layers are left out, and the loss is measured.

    search = least_important(model, documents, remove=6, precision="bfloat16")

Greedy: in each round every remaining layer is left out in turn, and the one is removed without which the held-out loss is
lowest (Song et al., SLEB, arXiv 2402.09025). Of two layers that do the same, either can go, but not both, which a single
ranking (Men et al., ShortGPT, arXiv 2403.03853) cannot see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from model_ops.documents import MICRO_BATCH_TOKENS, Document, to_batches
from model_ops.families import layer_list
from model_ops.jobs import ModelError
from model_ops.losses import token_nll
from model_ops.machine import Precision, products_in
from model_ops.models import Bypass
from model_ops.pruning.shallower import layers_fit


@dataclass(frozen=True)
class LayerRemoval:
    """A removed layer, and the held-out loss (nats per target token) without it and those before it."""

    layer: int
    loss: float


@dataclass(frozen=True)
class LayerSearch:
    """Result of the search for layers to remove."""

    loss: float
    """Loss of the whole model."""
    removed: list[LayerRemoval]
    """Removed layers, in order."""
    remaining: list[int]
    """Indices of the remaining layers, ascending."""


@torch.no_grad()
def least_important(
    model: PreTrainedModel,
    documents: Sequence[Document],
    remove: int,
    precision: Precision = "float32",
    batch_tokens: int = MICRO_BATCH_TOKENS,
    after_layer: Callable[[int, int], None] | None = None,
) -> LayerSearch:
    """Removes `remove` layers greedily. after_layer(done, total): called after each measured removal.

    The first and the last layer take part like all others. A layer stays where the rest would no longer fit the family's layout
    (DeepSeek-V3's first layers are dense). Raises ValueError for more layers than the model has, or no document with a target,
    ModelError if no layer can go.
    """
    _, layers = layer_list(model)
    if not 0 <= remove < len(layers):
        raise ValueError(f"cannot remove {remove} of {len(layers)} layers")
    device, was_training = next(model.parameters()).device, model.training
    batches = [batch.to(device) for batch in to_batches(documents, batch_tokens)]
    model.eval()
    originals, left = list(layers), list(range(len(layers)))
    removed: list[LayerRemoval] = []
    total, done = sum(len(layers) - gone for gone in range(remove)), 0

    def may_go(layer: int) -> bool:
        return layers_fit(model, [other for other in left if other != layer])

    try:
        whole = _loss(model, batches, precision)
        for _ in range(remove):
            losses = []
            candidates = [layer for layer in left if may_go(layer)]
            if not candidates:
                raise ModelError(
                    f"{type(model).__name__} cannot lose another layer after {len(removed)}, because its family "
                    "fixes the places of layers of different shapes: keep more layers, or choose_layers: even"
                )
            for layer in candidates:
                layers[layer] = Bypass(originals[layer])
                losses.append((_loss(model, batches, precision), layer))
                layers[layer] = originals[layer]
                done += 1
                if after_layer is not None:
                    after_layer(done, total)
            loss, layer = min(losses)
            layers[layer] = Bypass(originals[layer])
            left.remove(layer)
            removed.append(LayerRemoval(layer, loss))
    finally:
        for layer, module in enumerate(originals):
            layers[layer] = module
        model.train(was_training)
    return LayerSearch(whole, removed, left)


def _loss(model: PreTrainedModel, batches: Sequence, precision: Precision) -> float:
    nll_sum, tokens = 0.0, 0
    for batch in batches:
        with products_in(precision, batch.labels.device):
            losses, _ = token_nll(model, batch)
        nll_sum += float(losses.double().sum())
        tokens += losses.numel()
    if not tokens:
        raise ValueError("no document holds a target")
    return nll_sum / tokens

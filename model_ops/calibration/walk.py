"""Walks over a model's blocks with calibration rows: what each Linear layer reads, with all blocks before it quantized already.

    for block in walk(model, batches, layers):          # layers: names of the Linear modules to calibrate
        for name, moment in block.moments().items():    # E[x x^T] of the layer's inputs, float32
            block.replace(name, quantized_weight)       # what later blocks will read

Only hidden states of one block boundary are kept, and second moments of one block. Layers that read the same tensor (q, k and
v; gate and up) share one moment. A block runs twice: as it was, to see what its layers read, and with its new weights, so that
the next block is calibrated on what it will really read (GPTQ's code; llm-compressor's "sequential" pipeline).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn
from transformers import PreTrainedModel

from model_ops.batch import Batch
from model_ops.models.bypass import bypassed
from model_ops.models.shallower import layer_list

SMALLEST_STRIP, MOST_STRIPS = 256, 8
"""Rows of a second moment that are added to at a time, and most parts of it: eight strips take 36/64 of all products."""


@dataclass
class _Run:
    """One batch on its way: its hidden states, and what each block is called with besides."""

    hidden: Float[Tensor, "1 tokens hidden"]
    rest: list[dict[str, object]]


@dataclass
class Block:
    """One block of the walk. index: its number. layers: its Linear modules by their names in the model."""

    index: int
    module: nn.Module
    layers: dict[str, nn.Linear]
    runs: Sequence[_Run]
    _moments: dict[str, Float32[Tensor, "in in"]] | None = field(default=None, repr=False)

    def moments(self) -> dict[str, Float32[Tensor, "in in"]]:
        """E[x x^T] of every layer's inputs over all tokens; layers that read the same tensor have the same one."""
        if self._moments is None:
            watch = _Watch(self.layers)
            with watch:
                for run in self.runs:
                    self.module(run.hidden, **run.rest[self.index])
            self._moments = watch.means()
        return self._moments

    def replace(self, name: str, weight: Float[Tensor, "out in"]) -> None:
        """Gives a layer the weight that it will be served with."""
        layer = self.layers[name]
        layer.weight.data.copy_(weight)

    def advance(self) -> None:
        """Runs the block with its present weights: its outputs are the next block's hidden states."""
        for run in self.runs:
            found = self.module(run.hidden, **run.rest[self.index])
            run.hidden = found[0] if isinstance(found, tuple) else found
        self._moments = None


class _Watch:
    """Adds up x x^T of each layer's inputs while a block runs."""

    def __init__(self, layers: dict[str, nn.Linear]):
        self.layers, self.sums, self.counts, self.leaders, self.hooks = layers, {}, {}, {}, []
        self._read: list[tuple[Tensor, str]] = []

    def __enter__(self) -> None:
        for name, layer in self.layers.items():
            self.hooks.append(layer.register_forward_pre_hook(lambda module, given, name=name: self._seen(name, given[0])))

    def __exit__(self, *_) -> None:
        for hook in self.hooks:
            hook.remove()
        self._read.clear()

    def _seen(self, name: str, inputs: Tensor) -> None:
        leader = next((other for tensor, other in self._read if tensor is inputs), None)
        self._read = [*self._read[-8:], (inputs, name)] if leader is None else self._read
        if leader is not None and self.leaders.setdefault(name, leader) == leader:
            return
        if name in self.leaders and leader is None:  # read another tensor than its leader this time: it counts for itself
            self.sums[name], self.counts[name] = self.sums[self.leaders[name]].clone(), self.counts[self.leaders[name]]
            del self.leaders[name]
        flat = inputs.reshape(-1, inputs.shape[-1]).float()
        if name not in self.sums:
            self.sums[name] = torch.zeros(flat.shape[1], flat.shape[1], device=flat.device)
            self.counts[name] = 0
        add_products(self.sums[name], flat)
        self.counts[name] += len(flat)

    def means(self) -> dict[str, Float32[Tensor, "in in"]]:
        means = {name: (total.triu() + total.triu(1).T) / max(1, self.counts[name]) for name, total in self.sums.items()}
        return {**means, **{name: means[leader] for name, leader in self.leaders.items()}}


def add_products(total: Float32[Tensor, "in in"], rows: Float32[Tensor, "tokens in"]) -> None:
    """Adds x x^T of all rows to the upper triangle of `total`, in strips; what is below the diagonal is not used."""
    width = len(total)
    strip = max(SMALLEST_STRIP, -(-width // MOST_STRIPS))
    for first in range(0, width, strip):
        total[first:first + strip, first:].addmm_(rows[:, first:first + strip].T, rows[:, first:])


@torch.no_grad()
def walk(model: PreTrainedModel, batches: Sequence[Batch], layers: Collection[str]) -> Iterator[Block]:
    """The model's blocks in order. After each the caller has replaced what it wants to, and the walk goes on with the outputs.

    The model must be loaded with attention="packed"; its weights change.
    """
    model.eval()
    prefix, blocks = layer_list(model)
    runs = [_at_the_blocks(model, blocks, batch) for batch in batches]
    for index, module in enumerate(blocks):
        start = f"{prefix}.{index}."
        linear = {f"{start}{name}": layer for name, layer in module.named_modules()
                  if isinstance(layer, nn.Linear) and f"{start}{name}" in layers}
        block = Block(index, module, linear, runs)
        yield block
        block.advance()


def _at_the_blocks(model: PreTrainedModel, blocks: nn.ModuleList, batch: Batch) -> _Run:
    """The hidden states that the first block is called with, and the other arguments of every block: families give their
    layers different masks and rotary tables."""
    with bypassed(blocks) as recorders:
        model.base_model(**batch.model_inputs)
    (hidden, _), = recorders[0].calls
    return _Run(hidden, [named for recorder in recorders for _, named in recorder.calls])

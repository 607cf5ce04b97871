"""Walks over a model's blocks with calibration rows: what each Linear layer reads, with all blocks before it quantized already.

    for block in walk(model, batches, layers):          # layers: names of the Linear modules to calibrate
        for name, read in block.inputs().items():       # E[x x^T] of the layer's inputs, their range, a sample
            block.replace(name, quantized_weight)       # what later blocks will read

Only hidden states of one block boundary are kept, and second moments of one block. Layers that read the same tensor (q, k and
v; gate and up) share one moment. A block runs twice: as it was, to see what its layers read, and with its new weights, so that
the next block is calibrated on what it will really read (GPTQ's code; llm-compressor's "sequential" pipeline). What a mixture
of experts reads is kept as it is, with the router's choice (`Block.routed`): `model_ops.calibration.expert_inputs` shows it to
one expert after another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from model_ops.batch import Batch
from model_ops.models.bypass import bypassed
from model_ops.models.shallower import layer_list
from model_ops.quantization.separate_experts import EACH, SeparateExperts, separated

SMALLEST_STRIP, MOST_STRIPS = 256, 8
"""Rows of a second moment that are added to at a time, and most parts of it: eight strips take 36/64 of all products."""

SAMPLED_ROWS = 512
"""Inputs of a layer that are kept as they are, spread evenly over all tokens."""


Routed = list[tuple[Float[Tensor, "tokens hidden"], Int[Tensor, "tokens top_k"]]]
"""Hidden states that a mixture read, and the experts that the router chose for each, run by run."""


@dataclass
class Run:
    """One batch on its way: its hidden states, and what each block is called with besides."""

    hidden: Float[Tensor, "1 tokens hidden"]
    rest: list[dict[str, object]]


@dataclass(frozen=True)
class Inputs:
    """What a layer reads on all calibration rows: E[x x^T], each input's largest absolute value, and some of the rows. moment:
    None where the walk leaves moments out."""

    moment: Float32[Tensor, "in in"] | None
    largest: Float32[Tensor, " in"]
    sample: Float[Tensor, "rows in"]


@dataclass
class Block:
    """One block of the walk. index: its number. layers: its Linear modules by their names in the model, without those of
    experts. prefix: what these names begin with. with_moments: whether second moments of what layers read are added up.
    mixtures: its modules with experts to calibrate, by name."""

    index: int
    module: nn.Module
    layers: dict[str, nn.Linear]
    runs: Sequence[Run]
    prefix: str
    with_moments: bool = True
    mixtures: dict[str, SeparateExperts] = field(default_factory=dict)
    _inputs: dict[str, Inputs] | None = field(default=None, repr=False)
    _routed: dict[str, Routed] = field(default_factory=dict, repr=False)

    def inner(self, name: str) -> str:
        """The name of a layer within the block."""
        return name.removeprefix(self.prefix)

    def inputs(self) -> dict[str, Inputs]:
        """What each layer reads; layers that read the same tensor have the same Inputs."""
        if self._inputs is None:
            watch = _Watch(self.layers, self.mixtures, -(-SAMPLED_ROWS // max(1, len(self.runs))), self.with_moments)
            with watch:
                for run in self.runs:
                    with suppress(_AllSeen):
                        self.output(run)
                    watch.next_run()
            self._inputs, self._routed = watch.found(), watch.routed
        return self._inputs

    def routed(self, mixture: str) -> Routed:
        """What a module with experts reads, run by run."""
        self.inputs()
        return self._routed[mixture]

    def replace(self, name: str, weight: Float[Tensor, "out in"]) -> None:
        """Gives a layer the weight that it will be served with."""
        layer = self.layers[name]
        layer.weight.data.copy_(weight)

    def output(self, run: Run) -> Float[Tensor, "1 tokens hidden"]:
        """What the block makes of a batch with its present weights."""
        found = self.module(run.hidden, **run.rest[self.index])
        return found[0] if isinstance(found, tuple) else found

    def advance(self) -> None:
        """Runs the block with its present weights: its outputs are the next block's hidden states."""
        for run in self.runs:
            run.hidden = self.output(run)
        self._inputs, self._routed = None, {}


class _AllSeen(Exception):
    """Every layer has read its inputs: the rest of the block says nothing more."""


class _Watch:
    """Adds up what each layer reads while a block runs, and keeps what mixtures read. sampled: rows of a run that are kept."""

    def __init__(self, layers: dict[str, nn.Linear], mixtures: dict[str, SeparateExperts], sampled: int, with_moments: bool):
        self.layers, self.mixtures, self.sampled, self.with_moments = layers, mixtures, sampled, with_moments
        self.routed: dict[str, Routed] = {name: [] for name in mixtures}
        self.sums, self.counts, self.leaders, self.hooks = {}, {}, {}, []
        self.largest, self.samples = {}, {}
        self._read: list[tuple[Tensor, str]] = []
        self._calls, self._once = dict.fromkeys((*layers, *mixtures), 0), False

    def __enter__(self) -> None:
        for name, layer in self.layers.items():
            self.hooks.append(layer.register_forward_pre_hook(lambda module, given, name=name: self._seen(name, given[0])))
        for name, mixture in self.mixtures.items():
            mixture.watch = partial(self._chosen, name)

    def __exit__(self, *_) -> None:
        for hook in self.hooks:
            hook.remove()
        for mixture in self.mixtures.values():
            mixture.watch = None
        self._read.clear()

    def next_run(self) -> None:
        """A run has ended. If each layer read once in it, a later one may end when all of them have."""
        self._once = set(self._calls.values()) == {1}
        self._calls = dict.fromkeys(self._calls, 0)
        self._read.clear()

    def _seen(self, name: str, inputs: Tensor) -> None:
        self._add(name, inputs)
        self._called(name)

    def _chosen(self, name: str, hidden: Tensor, experts: Tensor) -> None:
        self.routed[name].append((hidden, experts))
        self._called(name)

    def _called(self, name: str) -> None:
        self._calls[name] += 1
        if self._once and all(self._calls.values()):
            raise _AllSeen

    def _add(self, name: str, inputs: Tensor) -> None:
        leader = next((other for tensor, other in self._read if tensor is inputs), None)
        self._read = [*self._read[-8:], (inputs, name)] if leader is None else self._read
        if leader is not None and self.leaders.setdefault(name, leader) == leader:
            return
        if name in self.leaders and leader is None:  # read another tensor than its leader this time: it counts for itself
            first = self.leaders.pop(name)
            self.sums[name], self.counts[name] = self.sums[first].clone(), self.counts[first]
            self.largest[name], self.samples[name] = self.largest[first].clone(), list(self.samples[first])
        flat = inputs.reshape(-1, inputs.shape[-1])
        if name not in self.sums:
            side = flat.shape[1] if self.with_moments else 0
            self.sums[name] = torch.zeros(side, side, device=flat.device)
            self.largest[name] = torch.zeros(flat.shape[1], device=flat.device)
            self.counts[name], self.samples[name] = 0, []
        if self.with_moments:
            add_products(self.sums[name], flat)
        self.counts[name] += len(flat)
        torch.maximum(self.largest[name], flat.abs().amax(0).float(), out=self.largest[name])
        places = torch.linspace(0, len(flat) - 1, min(len(flat), self.sampled), device=flat.device).long()
        self.samples[name].append(flat[places].clone())

    def found(self) -> dict[str, Inputs]:
        own = {name: Inputs((total.triu() + total.triu(1).T) / max(1, self.counts[name]) if self.with_moments else None,
                            self.largest[name], torch.cat(self.samples[name])) for name, total in self.sums.items()}
        return {**own, **{name: own[leader] for name, leader in self.leaders.items()}}


def add_products(total: Float32[Tensor, "in in"], rows: Float[Tensor, "tokens in"]) -> None:
    """Adds x x^T of all rows to the upper triangle of `total`, in strips; what is below the diagonal is not used.

    Products are of the rows' dtype: a sum over the rows of one batch is rounded to it, and batches are added in float32. The
    error of bfloat16, 2^-9 of an entry for each batch, is far below GPTQ's damping and several times as fast."""
    width = len(total)
    strip = max(SMALLEST_STRIP, -(-width // MOST_STRIPS))
    for first in range(0, width, strip):
        total[first:first + strip, first:].add_(rows[:, first:first + strip].T @ rows[:, first:])


@torch.no_grad()
def walk(model: PreTrainedModel, batches: Sequence[Batch], layers: Collection[str],
         with_moments: bool = True) -> Iterator[Block]:
    """The model's blocks in order. After each the caller has replaced what it wants to, and the walk goes on with the outputs;
    nothing reads those of the last one. layers: names of Linear modules, and of experts' layers as `BlockLayers.modules` gives
    them; a block's experts are separate while the caller has it.

    The model must be loaded with attention="packed"; its weights change.
    """
    model.eval()
    prefix, blocks = layer_list(model)
    runs = [_at_the_blocks(model, blocks, batch) for batch in batches]
    block: Block | None = None
    for index, module in enumerate(blocks):
        if block is not None:
            block.advance()
        start = f"{prefix}.{index}."
        linear = {f"{start}{name}": layer for name, layer in module.named_modules()
                  if isinstance(layer, nn.Linear) and f"{start}{name}" in layers}
        fused = dict.fromkeys(name.partition(EACH)[0] for name in layers if name.startswith(start) and EACH in name)
        with separated(model, fused) as mixtures:
            block = Block(index, module, linear, runs, start, with_moments, mixtures)
            yield block


def _at_the_blocks(model: PreTrainedModel, blocks: nn.ModuleList, batch: Batch) -> Run:
    """The hidden states that the first block is called with, and the other arguments of every block: families give their
    layers different masks and rotary tables."""
    with bypassed(blocks) as recorders:
        model.base_model(**batch.model_inputs)
    (hidden, _), = recorders[0].calls
    return Run(hidden, [named for recorder in recorders for _, named in recorder.calls])

"""Walks over a model's blocks with calibration rows: what each Linear layer reads, with all blocks before it quantized already.

    for block in walk(model, batches, layers):          # layers: names of the Linear modules to calibrate
        for name, read in block.inputs().items():       # E[x x^T] of the layer's inputs, their range, a sample
            block.replace(name, quantized_weight)       # what later blocks will read

Memory is one block's. Each block runs twice: as it was, then with its new weights for the next one. Processes share batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from model_ops.calibration.layer_inputs import SAMPLED_ROWS, Inputs, InputsComplete, Routed, RouterChoice, WatchedInputs
from model_ops.documents import Document, read_documents
from model_ops.jobs import ModelError
from model_ops.machine import free_device_memory
from model_ops.models import BlockwiseModel, bypass_blocks, load_tokenizer, read_config
from model_ops.parallel import World
from model_ops.quantization import EACH, SeparateExperts, unfuse
from model_ops.rendering import ServedTokens
from model_ops.tensors import Batch


def calibration_documents(
    dataset: Path, model: Path, rows: int, max_length: int, seed: int, served: Path | None = None
) -> list[Document]:
    """Up to `rows` documents of at most `max_length` tokens. Raises ModelError if the dataset has none for this model."""
    tokenizer = load_tokenizer(model)
    longest = min(max_length, read_config(model).get("max_position_embeddings") or max_length)
    ids = None if served is None else ServedTokens.read(served / "served.parquet")
    documents, counts = read_documents(dataset, "train", tokenizer, longest, "truncate", ids)
    if not len(documents):
        raise ModelError(
            f"no row of the dataset can calibrate: the model's chat template renders none of {counts['rows']} "
            "rows of the training split; set quantize.method to rtn, which needs no rows"
        )
    chosen = random.Random(seed).sample(range(len(documents)), min(rows, len(documents)))
    return [documents[index] for index in chosen]


HOST = torch.device("cpu")
HELD_SHARE = 0.25
"""Share of a device's free memory that hidden states may take; more of them wait in main memory."""


@dataclass
class BatchPass:
    """One batch on its way: its hidden states, and what each block is called with besides."""

    hidden: Float[Tensor, "rows tokens hidden"]
    rest: list[dict[str, object]]
    place: int = 0
    """Number of the batch among all batches."""


@dataclass
class WalkBlock:
    """One block of the walk."""

    index: int
    """Number of the block."""
    module: nn.Module
    layers: dict[str, nn.Linear]
    """Linear modules of the block, by their names in the model, without those of experts."""
    runs: Sequence[BatchPass]
    """Runs of this process; all processes together have `batches`."""
    trial: BatchPass
    """The shortest run, the same on every process."""
    prefix: str
    """Beginning of the layers' names."""
    batches: int
    world: World
    device: torch.device
    held_on: torch.device = HOST
    """Where hidden states wait for the next block."""
    with_moments: bool = True
    """Whether second moments of the layers' inputs are summed."""
    watches: Sequence[BlockWatch] = ()
    """Install hooks on the block while it runs."""
    mixtures: dict[str, SeparateExperts] = field(default_factory=dict)
    """Modules with experts to calibrate, by name."""
    advanced: bool = False
    _inputs: dict[str, Inputs] | None = field(default=None, repr=False)
    _routed: dict[str, Routed] = field(default_factory=dict, repr=False)
    _chosen: dict[str, list[RouterChoice]] = field(default_factory=dict, repr=False)

    def inner(self, name: str) -> str:
        """The name of a layer within the block."""
        return name.removeprefix(self.prefix)

    def inputs(self) -> dict[str, Inputs]:
        """What each layer reads; layers that read the same tensor have the same Inputs. Raises ModelError where that is not
        finite. Every process makes this call."""
        if self._inputs is None:
            watch = WatchedInputs(
                self.layers,
                self.mixtures,
                -(-SAMPLED_ROWS // max(1, self.batches)),
                self.with_moments,
                [run.place for run in self.runs],
                self.world,
            )
            with watch:
                for run in self.runs:
                    with suppress(InputsComplete):
                        self.output(run)
                    watch.next_run()
            self._inputs, self._routed, self._chosen = watch.inputs(), watch.routed, watch.chosen()
        return self._inputs

    def routed(self, mixture: str) -> Routed:
        """What a module with experts reads in the runs of this process, in main memory."""
        self.inputs()
        return self._routed[mixture]

    def chosen(self, mixture: str) -> list[RouterChoice]:
        """What the router of a module with experts chose in the runs of all processes."""
        self.inputs()
        return self._chosen[mixture]

    def replace(self, name: str, weight: Float[Tensor, "out in"]) -> None:
        """Gives a layer the weight that it will be served with."""
        layer = self.layers[name]
        layer.weight.data.copy_(weight)

    def output(self, run: BatchPass) -> Float[Tensor, "rows tokens hidden"]:
        """What the block makes of a batch with its present weights."""
        output = self.module(run.hidden.to(self.device), **_moved(run.rest[self.index], self.device, {}))
        return output[0] if isinstance(output, tuple) else output

    def advance(self) -> None:
        """Runs the block with its present weights: its outputs are the next block's hidden states. The walk does so, unless its
        caller has."""
        if not any(run is self.trial for run in self.runs):
            self.trial.hidden = self.output(self.trial).to(self.held_on)
        hooks = [hook for watch in self.watches for hook in watch(self)]
        try:
            for run in self.runs:
                run.hidden = self.output(run).to(self.held_on)
        finally:
            for hook in hooks:
                hook.remove()
        self._inputs, self._routed, self._chosen, self.advanced = None, {}, {}, True


BlockWatch = Callable[[WalkBlock], list[RemovableHandle]]
"""Puts hooks on a block, for the time in which all calibration rows run through it with its last weights."""


@torch.no_grad()
def walk(
    model: PreTrainedModel | BlockwiseModel,
    batches: Sequence[Batch],
    layers: Collection[str],
    with_moments: bool = True,
    watches: Sequence[BlockWatch] = (),
    world: World | None = None,
) -> Iterator[WalkBlock]:
    """The model's blocks in order. After each the caller has replaced what it wants to, and the walk goes on with the outputs;
    nothing but watches reads those of the last one. layers: names of Linear modules, and of experts' layers as
    `BlockLayers.modules` gives them; a block's experts are separate while the caller has it.

    The model must be loaded with attention="packed"; its weights change. batches: of all processes. Raises ModelError for
    fewer batches than processes, and for weights that are not finite."""
    model, world = BlockwiseModel.of(model), world or World.alone(HOST)
    model.module.eval()
    if len(batches) < world.data_ranks:
        raise ModelError(
            f"the calibration rows make {len(batches)} batches, too few for {world.data_ranks} processes: raise "
            "quantize.calibration_rows, or make quantize.mesh smaller"
        )
    shortest = min(range(len(batches)), key=lambda place: batches[place].tokens)
    held_on = _held_on(model, batches)
    with model.outside():
        runs = {
            place: _at_the_blocks(model, batches[place], place, held_on)
            for place in sorted({shortest, *range(world.data_rank, len(batches), world.data_ranks)})
        }
    trial, own = runs[shortest], [run for place, run in runs.items() if place % world.data_ranks == world.data_rank]
    for index in range(len(model.blocks)):
        start = f"{model.prefix}.{index}."
        with model.block(index) as module:
            _refuse_not_finite(module, start)
            linear = {
                f"{start}{name}": layer
                for name, layer in module.named_modules()
                if isinstance(layer, nn.Linear) and f"{start}{name}" in layers
            }
            fused = dict.fromkeys(name.partition(EACH)[0] for name in layers if name.startswith(start) and EACH in name)
            with unfuse(model.module, fused) as mixtures:
                block = WalkBlock(
                    index,
                    module,
                    linear,
                    own,
                    trial,
                    start,
                    len(batches),
                    world,
                    model.device,
                    held_on,
                    with_moments,
                    watches,
                    mixtures,
                )
                yield block
            if not block.advanced and (watches or index + 1 < len(model.blocks)):
                block.advance()


@torch.no_grad()
def show(
    model: PreTrainedModel | BlockwiseModel,
    batches: Sequence[Batch],
    watches: Sequence[BlockWatch],
    world: World | None = None,
    after_block: Callable[[int, int], None] | None = None,
) -> None:
    """Runs all blocks as they are, under watches. after_block(blocks done, blocks in all)."""
    model = BlockwiseModel.of(model)
    for block in walk(model, batches, (), False, watches, world):
        block.advance()
        if after_block is not None:
            after_block(block.index + 1, len(model.blocks))


def _held_on(model: BlockwiseModel, batches: Sequence[Batch]) -> torch.device:
    """Where hidden states wait: on the model's device if all batches fit into HELD_SHARE of its free memory, because copies to
    main memory and back take longer than a block of a large model."""
    if model.device.type != "cuda":
        return HOST
    size = sum(batch.tokens for batch in batches) * model.module.config.hidden_size * model.module.dtype.itemsize
    return model.device if size <= HELD_SHARE * free_device_memory(model.device) else HOST


def _at_the_blocks(model: BlockwiseModel, batch: Batch, place: int, held_on: torch.device) -> BatchPass:
    """The hidden states that the first block is called with, and the other arguments of every block: families give their
    layers different masks and rotary tables."""
    with bypass_blocks(model.blocks) as recorders:
        model.module.base_model(**batch.to(model.device).model_inputs)
    ((hidden, _),) = recorders[0].calls
    known: dict[int, Tensor] = {}
    rest = [_moved(named, held_on, known) for recorder in recorders for _, named in recorder.calls]
    return BatchPass(hidden.to(held_on), rest, place)


def _moved(value: Any, device: torch.device, known: dict[int, Tensor]) -> Any:
    """A block's arguments with all tensors on a device; what several blocks share is moved once."""
    if isinstance(value, Tensor):
        if value.device != device and id(value) not in known:
            known[id(value)] = value.to(device)
        return known.get(id(value), value)
    if isinstance(value, dict):
        return {name: _moved(each, device, known) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_moved(each, device, known) for each in value)
    return value


def _refuse_not_finite(module: nn.Module, start: str) -> None:
    for name, values in module.named_parameters():
        if not torch.isfinite(values.sum(dtype=torch.float32)) and not torch.isfinite(values).all():
            raise ModelError(f"{start}{name} holds values that are not finite; train the model again")

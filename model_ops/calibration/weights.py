"""Chooses codes of Linear layers by what they read in calibration rows: gptq (int4), awq (int4, inputs scaled by AWQ, nearest
codes), awq_gptq (both), smoothquant (int8). Other layers are rounded to the nearest. Each block's tensors are written when it
is done (folder/block-7.safetensors), so a stopped run computes no block twice; processes share the matrices of a block."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from jaxtyping import Float32
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from model_ops.calibration.expert_inputs import experts_of
from model_ops.calibration.gptq_codes import gptq
from model_ops.calibration.layer_inputs import Inputs
from model_ops.calibration.scalable_inputs import ScalableInputs, awq_scales, int8_outputs, scalable_inputs, smooth_scales
from model_ops.calibration.walk import BlockWatch, WalkBlock, walk
from model_ops.files import TORCH_NAMES, Layout, renamed_when_complete
from model_ops.models import BlockwiseModel
from model_ops.parallel import World, wait_for_all
from model_ops.quantization import BlockLayers, Int8Linear, QuantizedLinear, Scheme, int4_linear
from model_ops.tensors import Batch

SCALES_INPUTS, ROUNDS_IN_TURN = ("awq", "awq_gptq", "smoothquant"), ("gptq", "awq_gptq")
INPUTS, OUTPUTS = "input_scales", "output_scales"
"""Parts of a layer in a block's file: what its weight was multiplied by, column by column and row by row."""
ERRORS = "errors"
"""Metadata of a block's file: [layer, error when rounded, error of the codes chosen] of its layers, as JSON."""
OF_EXPERT = ScalableInputs(("down",), "up", "rows")
"""What can be scaled in a gated MLP, act(gate) * up, without a trial."""


@dataclass(frozen=True)
class LayerError:
    """Mean squared error of a layer's outputs on the calibration rows, over the mean square of its outputs."""

    layer: str
    rounded: float
    """Error with every weight rounded to the nearest code."""
    calibrated: float
    """Error with the chosen codes."""


@dataclass(frozen=True)
class CalibratedWeights:
    """Weights that calibration chose, in files."""

    files: dict[str, Path]
    """Layer in the checkpoint -> file that holds its stored tensors."""
    errors: list[LayerError]
    """Errors of layers whose codes were chosen or scaled."""
    replaced: dict[str, Path] = field(default_factory=dict)
    """Other tensors with new values, by name: the file that holds each."""

    def stored(self, layer: str, parts: Sequence[str]) -> dict[str, Tensor]:
        """A layer's stored tensors."""
        with safe_open(self.files[layer], framework="pt") as tensors:
            return {part: tensors.get_tensor(f"{layer}.{part}") for part in parts}

    def scaled(self, layer: str, weight: Float32[Tensor, "out in"]) -> Float32[Tensor, "out in"]:
        """A layer's float weight, scaled as the one that its codes stand for."""
        with safe_open(self.files[layer], framework="pt") as tensors:
            names = set(tensors.keys())
            for part, shape in ((INPUTS, (1, -1)), (OUTPUTS, (-1, 1))):
                if f"{layer}.{part}" in names:
                    weight = weight * tensors.get_tensor(f"{layer}.{part}").to(weight.device).view(shape)
        return weight

    def replacement(self, name: str) -> Tensor:
        """The new values of a tensor."""
        with safe_open(self.replaced[name], framework="pt") as tensors:
            return tensors.get_tensor(name)


def calibrated_weights(
    model: PreTrainedModel | BlockwiseModel,
    layers: BlockLayers,
    schemes: Mapping[str, Scheme],
    batches: Sequence[Batch],
    folder: Path,
    method: str,
    after_block: Callable[[int, int], None] | None = None,
    before_expert: Callable[[], None] | None = None,
    watches: Sequence[BlockWatch] = (),
    world: World | None = None,
) -> CalibratedWeights:
    """Chooses codes block by block. schemes: layer in the checkpoint -> its scheme; layers without one stay as they are. The
    weights of a model in memory become the quantized ones. after_block(blocks done, blocks in all). before_expert: called
    before an expert's codes are chosen. watches: see what blocks compute with their quantized weights. world: processes that
    share batches and matrices."""
    model = BlockwiseModel.of(model)
    folder.mkdir(parents=True, exist_ok=True)
    names = {module: layer for layer, module in layers.modules.items() if layer in schemes}
    in_checkpoint = {module: stored for stored, module in layers.renamed.items()}
    files, replaced, errors = {}, {}, []
    calibrated = any(scheme.calibrated for scheme in schemes.values())
    for block in walk(model, batches, names, calibrated, watches, world):
        file = folder / f"block-{block.index}.safetensors"
        if not file.exists():
            done = _of_block(
                block,
                scalable_inputs(block) if method in SCALES_INPUTS else [],
                {module: schemes[names[module]] for module in block.layers},
                method,
            )
            for expert in experts_of(block):
                if before_expert is not None:
                    before_expert()
                done.add(
                    _of_block(
                        expert,
                        [OF_EXPERT] if method in SCALES_INPUTS else [],
                        {module: schemes[names[module]] for module in expert.layers},
                        method,
                    )
                )
            measured = [(names[module], *error) for module, error in done.errors.items()]
            tensors = {
                f"{names[module]}.{part}": tensor for module, stored in done.stored.items() for part, tensor in stored.items()
            }
            tensors |= {
                f"{names[module]}.{part}": values for module, scales in done.scales.items() for part, values in scales.items()
            }
            tensors |= {in_checkpoint.get(name, name): model.module.get_parameter(name) for name in done.replaced}
            if block.world.leads:
                with renamed_when_complete(file) as temporary:
                    save_file(
                        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
                        temporary,
                        {ERRORS: json.dumps(measured)},
                    )
            wait_for_all()
        saved = load_file(file)
        errors += _errors_in(file)
        for part in (block, *experts_of(block)):
            for module, layer in part.layers.items():
                scheme = schemes[names[module]]
                stored = {name: saved.pop(f"{names[module]}.{name}") for name in scheme.stored(*layer.weight.shape)}
                part.replace(module, scheme.load_layer().decode(stored))
                files[names[module]] = file
                for name in (INPUTS, OUTPUTS):
                    saved.pop(f"{names[module]}.{name}", None)
        for name, values in saved.items():
            model.module.get_parameter(layers.renamed.get(name, name)).data.copy_(values)
            replaced[name] = file
        if after_block is not None:
            after_block(block.index + 1, len(model.blocks))
    return CalibratedWeights(files, errors, replaced)


def _errors_in(file: Path) -> list[LayerError]:
    """The errors that a block's file holds."""
    with safe_open(file, framework="pt") as tensors:
        return [LayerError(*error) for error in json.loads(tensors.metadata()[ERRORS])]


@dataclass
class _Done:
    """Results of one block."""

    stored: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """Module -> its tensors."""
    scales: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """Module -> the factors of its weight, as INPUTS and OUTPUTS."""
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Module -> (error of rounding, error of the chosen codes)."""
    replaced: list[str] = field(default_factory=list)
    """Names of other parameters that have new values."""

    def add(self, other: _Done) -> None:
        """Takes another part of the block in."""
        self.stored |= other.stored
        self.scales |= other.scales
        self.errors |= other.errors


def _of_block(block: WalkBlock, groups: Sequence[ScalableInputs], schemes: Mapping[str, Scheme], method: str) -> _Done:
    """Encodes every layer; norms and biases are replaced in the model. Layers of one scheme that read the same tensor are one
    matrix. groups: inputs that can be scaled."""
    done = _Done()
    weights = _scaled(block, groups, schemes, done)
    together: dict[tuple[int, str], list[str]] = {}
    for module, scheme in schemes.items():
        if scheme.calibrated:
            together.setdefault((id(block.inputs()[module]), scheme.name), []).append(module)
        else:
            done.stored[module] = scheme.load_layer().encode(weights[module])
    _choose_codes(block, list(together.values()), schemes, weights, method, done)
    return done


def _choose_codes(
    block: WalkBlock,
    together: Sequence[list[str]],
    schemes: Mapping[str, Scheme],
    weights: Mapping[str, Tensor],
    method: str,
    done: _Done,
) -> None:
    """The codes of layers that read the same tensor, and the errors of all layers that codes were chosen or scaled for; each
    process computes those of its share."""
    world = block.world
    sides = [(sum(len(weights[module]) for module in modules), weights[modules[0]].shape[1]) for modules in together]
    of_group = shares([inputs**2 * (inputs + outputs) for outputs, inputs in sides], world.size)
    owners = {module: owner for modules, owner in zip(together, of_group, strict=True) for module in modules}
    for modules, owner in zip(together, of_group, strict=True):
        if owner != world.rank:
            continue
        kind, moment = schemes[modules[0]].load_layer(), block.inputs()[modules[0]].moment
        assert issubclass(kind, int4_linear.Int4Linear)
        inputs = done.scales.get(modules[0], {}).get(INPUTS)
        codes, steps = _codes(
            torch.cat([weights[module] for module in modules]),
            moment if inputs is None else moment / torch.outer(inputs, inputs),
            kind,
            method,
        )
        sizes = [len(weights[module]) for module in modules]
        for module, own_codes, own_steps in zip(modules, codes.split(sizes), steps.split(sizes), strict=True):
            done.stored[module] = kind.stored_parts(own_codes, own_steps)
    measured = [
        module
        for module, scheme in schemes.items()
        if scheme.calibrated or (method == "smoothquant" and issubclass(scheme.load_layer(), Int8Linear))
    ]
    if measured:
        block.inputs()  # on every process, also on one without a share
    own = {
        module: _errors(block, module, schemes[module].load_layer(), done)
        for place, module in enumerate(measured)
        if owners.get(module, place % world.size) == world.rank
    }
    every = {module: error for errors in world.gather(own) for module, error in errors.items()}
    done.errors |= {module: every[module] for module in measured}
    done.stored |= exchanged(
        done.stored, {module: schemes[module].stored(*weights[module].shape) for module in owners}, owners, world
    )


def _scaled(
    block: WalkBlock, groups: Sequence[ScalableInputs], schemes: Mapping[str, Scheme], done: _Done
) -> dict[str, Float32[Tensor, "_ _"]]:
    """The layers' float weights, scaled where the method scales and scales help."""
    weights = {block.inner(module): layer.weight.detach().float() for module, layer in block.layers.items()}
    for group in groups:
        readers = [f"{block.prefix}{name}" for name in group.readers]
        scales = _best_scales(
            group,
            torch.cat([weights[name] for name in group.readers]),
            block.inputs()[readers[0]],
            [schemes[module] for module in readers],
        )
        if scales is None:
            continue
        spread = group.fold(block, weights, scales)
        for module in readers:
            done.scales.setdefault(module, {})[INPUTS] = spread.clone()  # files do not hold a tensor twice
        source = f"{block.prefix}{group.source}"
        if group.form == "rows":
            done.scales.setdefault(source, {})[OUTPUTS] = 1 / scales
        done.replaced += [
            f"{source}.{name}" for name, value in block.module.get_submodule(group.source).named_parameters() if value.ndim == 1
        ]
    return {f"{block.prefix}{name}": weight for name, weight in weights.items()}


def _best_scales(group: ScalableInputs, weight: Tensor, inputs: Inputs, schemes: Sequence[Scheme]) -> Tensor | None:
    """None where no scales are best, or where schemes of the readers differ."""
    if len({scheme.name for scheme in schemes}) > 1:
        return None
    kind = schemes[0].load_layer()
    if issubclass(kind, int4_linear.Int4Linear):
        return awq_scales(group, weight, inputs, kind.GROUP_SIZE)
    return smooth_scales(group, weight, inputs) if issubclass(kind, Int8Linear) else None


def _codes(weight: Tensor, moment: Tensor, kind: type[int4_linear.Int4Linear], method: str) -> tuple[Tensor, Tensor]:
    """(codes, scales of groups) of a weight."""
    steps = int4_linear.group_scales(weight, kind.GROUP_SIZE, moment.diagonal())
    return (gptq(weight, moment, steps) if method in ROUNDS_IN_TURN else int4_linear.round_to_nearest(weight, steps)), steps


def _errors(block: WalkBlock, module: str, kind: type[QuantizedLinear], done: _Done) -> tuple[float, float]:
    """(with every weight rounded to the nearest and no scales; with what is stored) of a layer's outputs."""
    weight, read, scales = block.layers[module].weight.detach().float(), block.inputs()[module], done.scales.get(module, {})
    if issubclass(kind, Int8Linear):
        sample, ours, plain = read.sample.float(), done.stored[module], kind.encode(weight)
        wanted = sample @ weight.T
        scaled = int8_outputs(sample / scales.get(INPUTS, 1.0), ours["weight"], ours["weight_scale"])
        nearest, chosen = (
            float((outputs - wanted).square().sum() / wanted.square().sum().clamp(min=1e-20))
            for outputs in (int8_outputs(sample, plain["weight"], plain["weight_scale"]), scaled / scales.get(OUTPUTS, 1.0))
        )
        return nearest, chosen
    stored = kind.decode(done.stored[module]) / scales.get(INPUTS, 1.0)
    if OUTPUTS in scales:
        stored = stored / scales[OUTPUTS][:, None]
    if read.moment is None:
        raise ValueError(f"{module} was watched without second moments")
    of_output = mean_square(weight, read.moment).clamp(min=1e-20)
    nearest, chosen = (
        float((mean_square(each.to(weight.device) - weight, read.moment) / of_output).clamp(min=0))
        for each in (kind.decode(kind.encode(weight)), stored)
    )
    return nearest, chosen


def mean_square(weight: Tensor, moment: Tensor) -> Tensor:
    """E |weight x|^2."""
    return ((weight @ moment) * weight).sum()


def shares(costs: Sequence[float], processes: int) -> list[int]:
    """The process of each piece of work: the largest first, each to the process with least to do."""
    load, owners = [0.0] * processes, [0] * len(costs)
    for place in sorted(range(len(costs)), key=lambda each: -costs[each]):
        owners[place] = load.index(min(load))
        load[owners[place]] += costs[place]
    return owners


def exchanged(
    own: Mapping[str, Mapping[str, Tensor]], layouts: Mapping[str, Layout], owners: Mapping[str, int], world: World
) -> dict[str, dict[str, Tensor]]:
    """The tensors of all layers from the processes that own them, in main memory. own: layer -> its tensors, of this process's
    layers. layouts: layer -> dtype and shape of its tensors."""
    if world.size == 1:
        return {layer: dict(own[layer]) for layer in owners}
    tensors: dict[str, dict[str, Tensor]] = {}
    for layer, owner in owners.items():
        tensors[layer] = {}
        for part, (dtype, shape) in layouts[layer].items():
            if owner == world.rank:
                tensor = own[layer][part].cpu().contiguous()
            else:
                tensor = torch.empty(shape, dtype=getattr(torch, TORCH_NAMES[dtype]))
            dist.broadcast(tensor.view(-1).view(torch.uint8), owner)
            tensors[layer][part] = tensor
    return tensors

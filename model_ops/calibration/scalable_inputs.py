"""Scales inputs of a block's Linear layers so that rounding costs less (AWQ, SmoothQuant) and the block computes the same.

    for group in scalable_inputs(block):
        scales = awq_scales(group, weight, inputs, 128)       # or smooth_scales; None: no scales are best
        group.fold(block, weights, scales)

What the readers read, x, is the output of a norm, or a linear function of a Linear layer's outputs: of up_proj in a gated MLP,
of v_proj in attention. Groups are tried: scaled by random powers of two, the block's output must not change. So a router or a
second branch that reads the same tensor rules a group out, whatever the family.

Scales are s = x^r / w^(1 - r), with r searched on a grid for the least error of the layer's outputs: AWQ (Lin et al., arXiv
2306.00978) takes the root mean square of an input and the mean size of its weights, its error is tr(D E[x x^T] D^T) with D the
change of the weights; SmoothQuant (Xiao et al., arXiv 2211.10438) takes the largest input and weight."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int8
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from model_ops.calibration.walk import BatchPass, Inputs, WalkBlock
from model_ops.jobs import ModelError
from model_ops.parallel import World
from model_ops.quantization import LARGEST, SMALLEST_SCALE, int4_linear, int8_product, quantize_symmetric, watch_cache


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
        """Attention module -> (scale of keys, scale of values), of the rows of all processes. Raises ModelError if a layer
        caches nothing, or values that are not finite."""
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


TOLERANCE = 0.01
"""Largest change of what a block adds to its input, relative, in a trial: powers of two are exact but in 1 + w norms, which
lose a bit of bfloat16."""


@dataclass(frozen=True)
class ScalableInputs:
    """Linear layers that read one input, whose scale can be moved into the module before them."""

    readers: tuple[str, ...]
    """Names of Linear layers."""
    source: str
    """Name of the module that makes what they read."""
    form: str
    """How the source is divided: weight (a norm's weight and bias), one_plus (a norm that multiplies by 1 + weight), rows
    (a Linear layer's outputs)."""
    shared: int = 1
    """Readers' inputs that come from one output of the source, `head_dim` apart (query heads of a value head)."""
    head_dim: int = 1

    def spread(self, scales: Float32[Tensor, " channels"]) -> Float32[Tensor, " in"]:
        """The scale of each input of the readers."""
        if self.shared == 1:
            return scales
        return scales.view(-1, 1, self.head_dim).expand(-1, self.shared, -1).reshape(-1)

    def gathered(self, values: Float32[Tensor, " in"]) -> Float32[Tensor, "channels shared"]:
        """Values of the readers' inputs by output of the source."""
        return values.view(-1, self.shared, self.head_dim).transpose(1, 2).reshape(-1, self.shared)

    def fold(
        self, block: WalkBlock, weights: dict[str, Float32[Tensor, "_ _"]], scales: Float32[Tensor, " channels"]
    ) -> Float32[Tensor, " in"]:
        """Multiplies the readers' weights and divides the source. weights: those of the block's Linear layers, by name within
        the block; they are replaced. A norm and a bias are divided in place, in the dtype in which they are stored. Returns the
        scale of each input of the readers: what the norm's rounded weights stand for."""
        source = block.module.get_submodule(self.source)
        if self.form == "rows":
            weights[self.source] = weights[self.source] / scales[:, None]
        else:
            offset = 1.0 if self.form == "one_plus" else 0.0
            before = source.weight.float() + offset
            source.weight.data.copy_(before / scales - offset)
            after = source.weight.float() + offset
            scales = torch.where((before != 0) & (after != 0), before / after, 1.0)
        if getattr(source, "bias", None) is not None:
            source.bias.data.copy_(source.bias.float() / scales)
        spread = self.spread(scales)
        for reader in self.readers:
            weights[reader] = weights[reader] * spread
        return spread


@torch.no_grad()
def scalable_inputs(block: WalkBlock) -> list[ScalableInputs]:
    """The groups of a block whose readers and Linear sources are all layers that are quantized, in the order in which the
    block computes. The block's weights are as they were."""
    run = block.trial
    wanted = block.output(run)
    added = (wanted - run.hidden.to(wanted.device)).float().norm().clamp(min=1e-12)
    own = {block.inner(name) for name in block.layers}
    groups: list[ScalableInputs] = []
    for group in _candidates(block, run, own):
        if any(group.readers == accepted.readers for accepted in groups):
            continue
        with _as_it_was(block, group):
            channels = block.module.get_submodule(group.source).weight.shape[0]
            signs = torch.randint(2, (channels,), generator=torch.Generator().manual_seed(channels)) * 2 - 1
            weights = {name: block.module.get_submodule(name).weight.float() for name in {group.source, *group.readers} & own}
            group.fold(block, weights, torch.exp2(signs.float()).to(wanted.device))
            for name in {group.source, *group.readers} & own:
                block.module.get_submodule(name).weight.data.copy_(weights[name])
            change = (block.output(run) - wanted).float().norm()
        if change <= TOLERANCE * added:
            groups.append(group)
    return groups


@contextmanager
def _as_it_was(block: WalkBlock, group: ScalableInputs) -> Iterator[None]:
    """Puts the weights of a group back."""
    modules = [block.module.get_submodule(name) for name in (group.source, *group.readers)]
    saved = [(tensor, tensor.data.clone()) for module in modules for tensor in module.parameters(recurse=False)]
    try:
        yield
    finally:
        for tensor, before in saved:
            tensor.data.copy_(before)


def _candidates(block: WalkBlock, run: BatchPass, own: set[str]) -> Iterator[ScalableInputs]:
    """Groups that names and shapes allow, the likeliest source of each first."""
    read, sources = _tensors(block, run)
    modules = dict(block.module.named_modules())
    for readers, norm in ((names, sources.get(tensor)) for tensor, names in read.items()):
        width = modules[readers[0]].in_features
        if not own.issuperset(readers):
            continue
        if norm is not None and modules[norm].weight.shape == (width,):
            yield from (ScalableInputs(readers, norm, form) for form in ("weight", "one_plus"))
        if len(readers) > 1:
            continue
        parent = readers[0].rpartition(".")[0]
        beside = [name for name in modules if name in own and name.rpartition(".")[0] == parent and name != readers[0]]
        for name in reversed(beside):
            outputs, head_dim = modules[name].out_features, getattr(modules.get(parent), "head_dim", 0)
            if outputs == width:
                yield ScalableInputs(readers, name, "rows")
            elif head_dim and not width % outputs and not outputs % head_dim:
                yield ScalableInputs(readers, name, "rows", width // outputs, head_dim)


def _tensors(block: WalkBlock, run: BatchPass) -> tuple[Mapping[int, tuple[str, ...]], Mapping[int, str]]:
    """(tensor -> Linear layers that read it, tensor -> norm that made it) of one forward pass. Tensors are numbered."""
    tensors: list[Tensor] = []  # while they are referenced no other tensor has their identity
    read: dict[int, list[str]] = {}
    sources: dict[int, str] = {}
    hooks = []

    def number(tensor: Tensor) -> int:
        place = next((place for place, other in enumerate(tensors) if other is tensor), len(tensors))
        tensors.extend([tensor] * (place == len(tensors)))
        return place

    def reads(name: str):
        return lambda module, given: read.setdefault(number(given[0]), []).append(name)

    def makes(name: str):
        return lambda module, given, output: sources.__setitem__(number(output), name)

    for name, module in block.module.named_modules():
        shapes = {key: tensor.ndim for key, tensor in module.named_parameters(recurse=False)}
        if isinstance(module, nn.Linear):
            hooks.append(module.register_forward_pre_hook(reads(name)))
        elif shapes.get("weight") == 1 and shapes.keys() <= {"weight", "bias"} and not list(module.children()):
            hooks.append(module.register_forward_hook(makes(name)))
    try:
        block.output(run)
    finally:
        for hook in hooks:
            hook.remove()
    return {tensor: tuple(names) for tensor, names in read.items()}, sources


AWQ_POWERS = tuple(step / 20 for step in range(21))
SMOOTH_POWERS = tuple(step / 20 for step in range(4, 20, 2))
MEASURED_OUTPUTS = 256
"""Outputs of a layer on which AWQ's powers are compared, evenly spread: the error is a sum over outputs."""
LEAST = 1e-4
"""Smallest scale."""
GAIN = 0.95
"""Scales must lower the error to this share at most: a smaller gain is lost in what scales do to the next layer's inputs."""


def awq_scales(
    group: ScalableInputs, weight: Float32[Tensor, "out in"], inputs: Inputs, group_size: int
) -> Float32[Tensor, " channels"] | None:
    """weight: of all readers, one below the other. None where no scales are best."""
    weight = weight[torch.linspace(0, len(weight) - 1, min(len(weight), MEASURED_OUTPUTS)).long()]
    if inputs.moment is None:
        raise ValueError(f"{group.readers[0]} was watched without second moments")
    moment = inputs.moment
    sizes = group.gathered(moment.diagonal()).mean(-1).sqrt()
    by_group = weight.abs().unflatten(-1, (-1, group_size))
    shares = (by_group / by_group.amax(-1, keepdim=True).clamp(min=1e-12)).flatten(-2).mean(0)
    weights = group.gathered(shares).mean(-1)

    def error(spread: Tensor) -> float:
        scaled = weight * spread
        steps = int4_linear.group_scales(scaled, group_size, shares=(1.0,)).float()
        change = int4_linear.rounded(scaled.unflatten(-1, (-1, group_size)), steps[..., None]).flatten(-2) / spread - weight
        return float(((change @ moment) * change).sum())

    return _best(group, [sizes**power / (weights ** (1 - power) + LEAST) for power in AWQ_POWERS], error)


def smooth_scales(
    group: ScalableInputs, weight: Float32[Tensor, "out in"], inputs: Inputs
) -> Float32[Tensor, " channels"] | None:
    """The same for int8 weights per channel and int8 activations per token; the error is that on the sampled inputs."""
    sizes = group.gathered(inputs.largest).amax(-1)
    weights = group.gathered(weight.abs().amax(0)).amax(-1)
    sample = inputs.sample.float()
    wanted = sample @ weight.T

    def error(spread: Tensor) -> float:
        steps, codes = quantize_symmetric(weight * spread)[::-1]
        return float((int8_outputs(sample / spread, codes, steps) - wanted).square().sum())

    return _best(
        group, [sizes.clamp(min=LEAST) ** power / weights.clamp(min=LEAST) ** (1 - power) for power in SMOOTH_POWERS], error
    )


def int8_outputs(
    inputs: Float32[Tensor, "rows in"], codes: Int8[Tensor, "out in"], steps: Float32[Tensor, "out 1"]
) -> Float32[Tensor, "rows out"]:
    """What a server computes with int8 weights and inputs."""
    rows, tokens = quantize_symmetric(inputs)
    return int8_product(rows, codes).float().mul_(tokens).mul_(steps.T)


def _best(group: ScalableInputs, candidates: list[Tensor], error) -> Tensor | None:
    best, least = None, GAIN * error(torch.ones_like(group.spread(candidates[0])))
    for scales in candidates:
        scales = scales.clamp(min=LEAST)
        scales = scales / (scales.max() * scales.min()).sqrt()
        if not torch.isfinite(scales).all():
            continue
        cost = error(group.spread(scales))
        if cost < least:
            best, least = scales, cost
    return best

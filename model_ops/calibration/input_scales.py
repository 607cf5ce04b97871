"""Scales of a layer's inputs that make its rounding cost less: AWQ's for int4 weights, SmoothQuant's for int8 activations.

    scales = awq_scales(group, weight, found, 128)        # per output of the group's source; None: no scales are best
    scales = smooth_scales(group, weight, found)

With inputs x / s and weights W s the layer computes the same, and rounds something else. Both methods take s from statistics,
s = x^r / w^(1 - r), with the power r searched on a grid for the least error of the layer's outputs on calibration rows:

    AWQ (Lin et al., arXiv 2306.00978)             x: root mean square of an input, w: mean size of its weights
    SmoothQuant (Xiao et al., arXiv 2211.10438)    x: largest input, w: largest weight

AWQ's error needs no forward pass: with H = E[x x^T] and D the change of the weights it is tr(D H D^T). (The paper takes E|x|,
and forms w from weights over the largest of their group, as llm-compressor does.) No scales at all are always tried as well.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32, Int8
from torch import Tensor

from model_ops.calibration.scalable_inputs import ScalableInputs
from model_ops.calibration.walk import Inputs
from model_ops.quantization.int4_linear import group_scales, rounded
from model_ops.quantization.int8_linear import int8_product, quantize_symmetric

AWQ_POWERS = tuple(step / 20 for step in range(21))
SMOOTH_POWERS = tuple(step / 20 for step in range(4, 20, 2))
MEASURED_OUTPUTS = 256
"""Outputs of a layer on which AWQ's powers are compared, evenly spread: the error is a sum over outputs."""
LEAST = 1e-4
"""Smallest scale."""
GAIN = 0.95
"""Scales must lower the error to this share at most: a smaller gain is lost in what scales do to the next layer's inputs."""


def awq_scales(group: ScalableInputs, weight: Float32[Tensor, "out in"], found: Inputs,
               group_size: int) -> Float32[Tensor, " channels"] | None:
    """weight: of all readers, one below the other. None where no scales are best."""
    weight = weight[torch.linspace(0, len(weight) - 1, min(len(weight), MEASURED_OUTPUTS)).long()]
    sizes = group.gathered(found.moment.diagonal()).mean(-1).sqrt()
    by_group = weight.abs().unflatten(-1, (-1, group_size))
    shares = (by_group / by_group.amax(-1, keepdim=True).clamp(min=1e-12)).flatten(-2).mean(0)
    weights = group.gathered(shares).mean(-1)

    def error(spread: Tensor) -> float:
        scaled = weight * spread
        steps = group_scales(scaled, group_size, shares=(1.0,)).float()
        change = rounded(scaled.unflatten(-1, (-1, group_size)), steps[..., None]).flatten(-2) / spread - weight
        return float(((change @ found.moment) * change).sum())

    return _best(group, [sizes**power / (weights ** (1 - power) + LEAST) for power in AWQ_POWERS], error)


def smooth_scales(group: ScalableInputs, weight: Float32[Tensor, "out in"],
                  found: Inputs) -> Float32[Tensor, " channels"] | None:
    """The same for int8 weights per channel and int8 activations per token; the error is that on the sampled inputs."""
    sizes = group.gathered(found.largest).amax(-1)
    weights = group.gathered(weight.abs().amax(0)).amax(-1)
    sample = found.sample.float()
    wanted = sample @ weight.T

    def error(spread: Tensor) -> float:
        steps, codes = quantize_symmetric(weight * spread)[::-1]
        return float((int8_outputs(sample / spread, codes, steps) - wanted).square().sum())

    return _best(group, [sizes.clamp(min=LEAST) ** power / weights.clamp(min=LEAST) ** (1 - power) for power in SMOOTH_POWERS],
                 error)


def int8_outputs(inputs: Float32[Tensor, "rows in"], codes: Int8[Tensor, "out in"],
                 steps: Float32[Tensor, "out 1"]) -> Float32[Tensor, "rows out"]:
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
        found = error(group.spread(scales))
        if found < least:
            best, least = scales, found
    return best

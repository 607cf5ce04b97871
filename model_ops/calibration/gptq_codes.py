"""GPTQ (Frantar et al., arXiv 2210.17323): rounds a weight's columns one after another, and lets the columns that are not
rounded yet make up for each error.

For inputs x the error of a layer is tr(D H D^T) with D the change of the weight and H = sum x x^T. Column j is rounded; its
error, divided by the diagonal of the Cholesky factor U of H^-1, is spread over the later columns along row j of U. Columns
come in the order of falling diag H ("act-order"); scales are fixed before, so the order leaves no trace in the file ("static
groups")."""

import torch
from jaxtyping import BFloat16, Float32, Int8
from torch import Tensor

from model_ops.quantization import int4_linear

DAMPING = 0.01
"""Share of the mean diagonal that is added to the diagonal, as in the paper's code; ten times it where that is not enough."""
COLUMNS_AT_ONCE = 128
"""Columns whose errors are spread over all later columns together."""


def gptq(
    weight: Float32[Tensor, "out in"],
    second_moment: Float32[Tensor, "in in"],
    scales: BFloat16[Tensor, "out groups"],
    damping: float = DAMPING,
) -> Int8[Tensor, "out in"]:
    """Codes of the weight, in the order of its columns. second_moment: sum or mean of x x^T over the layer's inputs."""
    inputs = weight.shape[1]
    diagonal = second_moment.diagonal()
    order = diagonal.argsort(descending=True, stable=True)
    factor = inverse_factor(second_moment[order][:, order], damping)
    by_column = scales.float().repeat_interleave(inputs // scales.shape[1], dim=1)[:, order]
    left = weight[:, order].clone()
    left[:, diagonal[order] == 0] = 0  # an input that is always 0 says nothing of its column
    codes = torch.empty_like(left)
    for first in range(0, inputs, COLUMNS_AT_ONCE):
        stop = min(first + COLUMNS_AT_ONCE, inputs)
        block, spread = left[:, first:stop], factor[first:stop, first:stop]
        codes[:, first:stop], errors = round_block(block, spread, by_column[:, first:stop])
        left[:, stop:] -= errors @ factor[first:stop, stop:]
    back = torch.empty_like(order).scatter_(0, order, torch.arange(inputs, device=order.device))
    return codes[:, back].to(torch.int8)


def round_block(
    block: Float32[Tensor, "out columns"], spread: Float32[Tensor, "columns columns"], scales: Float32[Tensor, "out columns"]
) -> tuple[Float32[Tensor, "out columns"], Float32[Tensor, "out columns"]]:
    """Codes of neighbouring columns, and their errors over the diagonal of `spread`. The block is overwritten."""
    codes, errors = torch.empty_like(block), torch.empty_like(block)
    for place in range(block.shape[1]):
        scale = scales[:, place]
        code = (block[:, place] / scale).round_().clamp_(int4_linear.LOWEST, int4_linear.HIGHEST)
        error = (block[:, place] - code * scale).div_(spread[place, place])
        block[:, place + 1 :] -= error[:, None] * spread[place, place + 1 :]
        codes[:, place], errors[:, place] = code, error
    return codes, errors


def inverse_factor(second_moment: Float32[Tensor, "in in"], damping: float) -> Float32[Tensor, "in in"]:
    """The upper Cholesky factor of the damped matrix's inverse. Inputs that are always 0 get a diagonal of 1."""
    damped = second_moment.clone()
    diagonal = damped.diagonal()
    diagonal[diagonal == 0] = 1
    undamped, mean = diagonal.clone(), diagonal.mean()
    for _ in range(6):
        diagonal.copy_(undamped + damping * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            inverse = torch.cholesky_inverse(lower)
            del lower  # a quarter of all memory here
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            if not failed and torch.isfinite(upper).all():
                return upper
            del upper, inverse
        damping *= 10
    raise ValueError("the inputs of a layer have no usable second moment: values are not finite, or far too large")

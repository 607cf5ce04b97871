"""GPTQ (Frantar et al., arXiv 2210.17323): rounds a weight's columns one after another, and lets the columns that are not
rounded yet make up for each error.

For inputs x the error of a layer is tr(D H D^T) with D the change of the weight and H = sum x x^T. Column j is rounded; its
error, divided by the diagonal of the Cholesky factor U of H^-1, is spread over the later columns along row j of U. Columns
come in the order of falling diag H ("act-order"); scales are fixed before, so the order leaves no trace in the file ("static
groups")."""

import torch
from jaxtyping import BFloat16, Float32, Int8, Int64
from torch import Tensor

from model_ops.quantization import int4_linear

DAMPING = 0.01
"""Share of the mean diagonal that is added to the diagonal, as in the paper's code; ten times it where that is not enough."""
COLUMNS_AT_ONCE = 128
"""Columns whose errors are spread over all later columns together."""
SOLVED_AT_ONCE = 512
"""Rows of a triangular matrix that are inverted by one solve."""


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
    factor = inverse_factor(second_moment, order, damping)
    by_column = scales.float().T.repeat_interleave(inputs // scales.shape[1], dim=0)[order]
    left = weight.T[order]  # a column lies in one piece, which its many small steps need
    left[diagonal[order] == 0] = 0  # an input that is always 0 says nothing of its column
    codes = torch.empty_like(left)
    for first in range(0, inputs, COLUMNS_AT_ONCE):
        stop = min(first + COLUMNS_AT_ONCE, inputs)
        block, spread = left[first:stop], factor[first:stop, first:stop]
        codes[first:stop], errors = round_block(block, spread, by_column[first:stop])
        left[stop:].addmm_(factor[first:stop, stop:].T, errors, alpha=-1)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(inputs, device=order.device))
    return codes.to(torch.int8)[back].T.contiguous()


def round_block(
    block: Float32[Tensor, "columns out"], spread: Float32[Tensor, "columns columns"], scales: Float32[Tensor, "columns out"]
) -> tuple[Float32[Tensor, "columns out"], Float32[Tensor, "columns out"]]:
    """Codes of neighbouring columns, and their errors over the diagonal of `spread`. The block is overwritten."""
    codes, errors = torch.empty_like(block), torch.empty_like(block)
    for place, scale in enumerate(scales):
        code = (block[place] / scale).round_().clamp_(int4_linear.LOWEST, int4_linear.HIGHEST)
        error = (block[place] - code * scale).div_(spread[place, place])
        block[place + 1 :].addr_(spread[place, place + 1 :], error, alpha=-1)
        codes[place], errors[place] = code, error
    return codes, errors


def inverse_factor(
    second_moment: Float32[Tensor, "in in"], order: Int64[Tensor, " in"], damping: float
) -> Float32[Tensor, "in in"]:
    """The upper Cholesky factor of the damped matrix's inverse, with its inputs in `order`. Inputs that are always 0 get a
    diagonal of 1. With the inputs backwards, the matrix is L L^T, and the factor is L^-1 backwards."""
    backwards = order.flip(0)
    damped = second_moment[backwards][:, backwards]
    diagonal = damped.diagonal()
    diagonal[diagonal == 0] = 1
    undamped, mean = diagonal.clone(), diagonal.mean()
    for _ in range(6):
        diagonal.copy_(undamped + damping * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            inverse = lower_inverse(lower)
            if torch.isfinite(inverse).all():
                del damped, diagonal, lower  # a third of all memory here
                return inverse.flip(0, 1)
            del inverse
        damping *= 10
    raise ValueError("the inputs of a layer have no usable second moment: values are not finite, or far too large")


def lower_inverse(lower: Float32[Tensor, "n n"]) -> Float32[Tensor, "n n"]:
    """The inverse of a lower triangular matrix, by halves: products are faster than a triangular solve."""
    if len(lower) <= SOLVED_AT_ONCE:
        return torch.linalg.solve_triangular(lower, torch.eye(len(lower), device=lower.device), upper=False)
    inverse, half = torch.zeros_like(lower), len(lower) // 2
    inverse[:half, :half], inverse[half:, half:] = lower_inverse(lower[:half, :half]), lower_inverse(lower[half:, half:])
    torch.mm(inverse[half:, half:] @ lower[half:, :half], inverse[:half, :half], out=inverse[half:, :half]).neg_()
    return inverse

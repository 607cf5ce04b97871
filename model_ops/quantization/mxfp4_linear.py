"""MXFP4: weights as floats of four bits, a power of two for each 32 inputs of a channel (OCP Microscaling Formats 1.0), in
compressed-tensors' "mxfp4-pack-quantized" format. Activations as they come, or rounded the same way.

The exponent is that of the group's largest absolute value, minus 2 (6 = 1.5 * 2^2 is the largest code); a value whose mantissa
is 1.75 or more counts for the next power of two, as in compressed-tensors. Stored is exponent + 127 (E8M0).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Float32, Int32
from torch import Tensor

from model_ops.quantization.fp4_codes import pack_fp4, round_fp4, unpack_fp4, values_fp4
from model_ops.quantization.quantized_linear import DequantizedLinear

GROUP, BIAS, LARGEST_EXPONENT = 32, 127, 2
ROUNDED_UP = 0.875
"""Mantissa in [0.5, 1), as frexp gives it, from which the next power of two counts."""


def group_exponents(groups: Float[Tensor, "*groups 32"]) -> Int32[Tensor, "*groups 1"]:
    """The exponent of the scale of each group; 0 for a group of zeros."""
    largest = groups.abs().amax(-1, keepdim=True).float()
    mantissa, exponent = torch.frexp(largest)
    exponent = exponent - 1 + (mantissa >= ROUNDED_UP) - LARGEST_EXPONENT
    return torch.where(largest > 0, exponent, 0).clamp(-BIAS, BIAS)


def round_mxfp4(hidden: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
    """The values that codes of four bits and their groups' scales stand for."""
    groups = hidden.float().unflatten(-1, (-1, GROUP))
    exponents = group_exponents(groups)
    return torch.ldexp(values_fp4(round_fp4(torch.ldexp(groups, -exponents))), exponents).flatten(-2).to(hidden.dtype)


class Mxfp4WeightLinear(DequantizedLinear):
    """A Linear layer with MXFP4 weights."""

    @staticmethod
    def encode(weight: Float32[Tensor, "out in"]) -> dict[str, Tensor]:
        groups = weight.unflatten(-1, (-1, GROUP))
        exponents = group_exponents(groups)
        codes = round_fp4(torch.ldexp(groups, -exponents)).flatten(-2)
        return {"weight_packed": pack_fp4(codes), "weight_scale": (exponents[..., 0] + BIAS).to(torch.uint8)}

    @staticmethod
    def decode(stored: Mapping[str, Tensor]) -> Float32[Tensor, "out in"]:
        values = values_fp4(unpack_fp4(stored["weight_packed"])).unflatten(-1, (-1, GROUP))
        return torch.ldexp(values, stored["weight_scale"].int()[..., None] - BIAS).flatten(-2)


class Mxfp4Linear(Mxfp4WeightLinear):
    """A Linear layer with MXFP4 weights and activations."""

    def rounded(self, hidden: Float[Tensor, "*tokens in"]) -> Float[Tensor, "*tokens in"]:
        return round_mxfp4(hidden)

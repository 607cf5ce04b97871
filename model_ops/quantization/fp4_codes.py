"""Floats of four bits (e2m1): 0, 0.5, 1, 1.5, 2, 3, 4, 6 with a sign, two codes to a byte (OCP Microscaling Formats 1.0).

codes = round_fp4(values)           # nearest; ties to the even mantissa, as compressed-tensors and the hardware round
packed = pack_fp4(codes)            # the first value in the lower half of the byte
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
LARGEST = VALUES[-1]
SIGN = 8


def round_fp4(values: Float[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """Codes of the nearest values; what is beyond 6 becomes 6."""
    size = values.abs()
    code = torch.zeros_like(values, dtype=torch.uint8)
    for found in (size > 0.25, size >= 0.75, size > 1.25, size >= 1.75, size > 2.5, size >= 3.5, size > 5):
        code += found.to(torch.uint8)
    return code + SIGN * (values < 0).to(torch.uint8)


def values_fp4(codes: UInt8[Tensor, "*shape"]) -> Float32[Tensor, "*shape"]:
    """The values of codes."""
    table = torch.tensor((*VALUES, *(-value for value in VALUES)), device=codes.device)
    return table[codes.long()]


def pack_fp4(codes: UInt8[Tensor, "*rows width"]) -> UInt8[Tensor, "*rows half"]:
    """Two codes to a byte; width must be even."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_fp4(packed: UInt8[Tensor, "*rows half"]) -> UInt8[Tensor, "*rows width"]:
    """The codes of packed bytes."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)

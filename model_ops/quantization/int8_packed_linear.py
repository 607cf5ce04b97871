"""W8A16: int8 weights with a scale per group of inputs or per output channel, activations as they come. compressed-tensors'
"pack-quantized" format with 8 bits.

Weights: symmetric codes in [-127, 127], weight = scale * code, scales in bfloat16. Four codes lie in one int32, each plus 128,
the first input's in the lowest eight bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float32, Int8, Int32
from torch import Tensor

from model_ops.quantization.quantized_linear import PackedLinear

HIGHEST, OFFSET, PER_WORD = 127, 128, 4
SMALLEST_SCALE = 1e-8
"""Scale of a group that is all zeros: any positive number keeps 0 / scale at 0."""


def pack_int8(codes: Int8[Tensor, "out in"]) -> Int32[Tensor, "out words"]:
    """Four codes to a word; the last word of a row is filled with the code -128."""
    filled = torch.nn.functional.pad(codes.to(torch.int32) + OFFSET, (0, -codes.shape[-1] % PER_WORD))
    shifts = torch.arange(0, 32, 8, dtype=torch.int32, device=codes.device)
    # the top code fills the sign bit: 64-bit sums wrap to the right 32 bits
    return (filled.unflatten(-1, (-1, PER_WORD)).long() << shifts).sum(-1).to(torch.int32)


def unpack_int8(words: Int32[Tensor, "out words"], inputs: int) -> Int8[Tensor, "out in"]:
    """The codes of packed words."""
    shifts = torch.arange(0, 32, 8, dtype=torch.int32, device=words.device)
    return (((words[..., None] >> shifts) & 0xFF) - OFFSET).flatten(-2)[..., :inputs].to(torch.int8)


class PackedInt8Linear(PackedLinear):
    """A Linear layer with packed int8 weights in groups of 128 inputs."""

    GROUP_SIZE: int | None = 128
    """None: one group for all inputs."""

    @classmethod
    def encode(cls, weight: Float32[Tensor, "out in"]) -> dict[str, Tensor]:
        groups = weight.unflatten(-1, (-1, cls.GROUP_SIZE or weight.shape[-1]))
        scales = (groups.abs().amax(-1) / HIGHEST).clamp(min=SMALLEST_SCALE).bfloat16()
        codes = (groups / scales.float()[..., None]).round_().clamp_(-HIGHEST, HIGHEST).flatten(-2).to(torch.int8)
        return {"weight_packed": pack_int8(codes), "weight_scale": scales, "weight_shape": torch.tensor(weight.shape)}

    @staticmethod
    def decode(stored: Mapping[str, Tensor]) -> Float32[Tensor, "out in"]:
        scales = stored["weight_scale"].float()
        codes = unpack_int8(stored["weight_packed"], int(stored["weight_shape"][1])).unflatten(-1, (scales.shape[1], -1))
        return (codes.float() * scales[..., None]).flatten(-2)


class ChannelInt8Linear(PackedInt8Linear):
    """The same with one scale for each output channel."""

    GROUP_SIZE = None

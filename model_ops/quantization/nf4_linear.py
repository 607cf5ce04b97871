"""nf4: 4-bit NormalFloat weights in blocks of 64, as bitsandbytes stores them (QLoRA, arXiv 2305.14314), in plain torch.

Weights are read row after row, so a block may span rows. A weight is one of 16 values times the largest absolute weight of its
block; two codes lie in a byte, the first in the upper four bits. With double quantization these scales, less their mean, are
one of 256 values times the largest of 256 scales. Servers multiply with the weights turned back into the activations' dtype;
so does this layer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Self

import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from model_ops.quantization.bitsandbytes_state import BLOCK, NESTED_BLOCK, STATE, state_of
from model_ops.quantization.dequantized_linear import DequantizedLinear

NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)
"""Values of the 16 codes (QLoRA, appendix E)."""
SMALLEST = 1e-38
"""Scale of a block that is all zeros, where it is divided by: any positive number keeps 0 / scale at 0."""
EXPONENTS = 7
"""Powers of ten of the 8-bit values, from 1 down."""


@lru_cache(maxsize=1)
def dynamic_values() -> tuple[float, ...]:
    """The values of the 256 codes of scales: for each power of ten, 2 ** k midpoints between a tenth of it and itself, with
    both signs; 0 and 1 ("dynamic tree" type, arXiv 1511.04561)."""
    found = [0.0, 1.0]
    for exponent in range(EXPONENTS):
        bounds = torch.linspace(0.1, 1, 2**exponent + 1, dtype=torch.float32)
        sizes = 10.0 ** (exponent - EXPONENTS + 1) * ((bounds[:-1] + bounds[1:]) / 2)
        found += [*sizes.tolist(), *(-sizes).tolist()]
    return tuple(sorted(found))


def encode_blocks(values: Float32[Tensor, " count"], table: Float32[Tensor, " codes"],
                  block: int) -> tuple[UInt8[Tensor, " count"], Float32[Tensor, " blocks"]]:
    """Codes of the nearest values of an ascending table, and the largest absolute value of each block; the last may be short.

    Whole blocks are multiplied by the reciprocal of their scale and the short one is divided, as bitsandbytes does: the two
    round differently.
    """
    whole = len(values) // block * block
    blocks, rest = values[:whole].view(-1, block), values[whole:]
    scales = blocks.abs().amax(dim=1)
    scaled = (blocks * (1.0 / scales.clamp(min=SMALLEST))[:, None]).clamp(-1, 1).flatten()
    if len(rest):
        last = rest.abs().amax().clamp(min=SMALLEST)
        scales, scaled = torch.cat([scales, last[None]]), torch.cat([scaled, (rest / last).clamp(-1, 1)])
    return torch.bucketize(scaled, (table[:-1] + table[1:]) / 2, out_int32=True).to(torch.uint8), scales


def decode_blocks(codes: UInt8[Tensor, " count"], table: Float32[Tensor, " codes"], scales: Float32[Tensor, " blocks"],
                  block: int) -> Float32[Tensor, " count"]:
    """The values that codes and scales stand for."""
    return table[codes.long()] * scales.repeat_interleave(block)[:len(codes)]


class Nf4Linear(DequantizedLinear):
    """A Linear layer with nf4 weights."""

    DOUBLE = False
    """Whether the scales are stored in 8 bits."""
    joined: Sequence[Self] = ()
    """The layers that this one stands for, one after the other; its own tensors are then not there."""

    @classmethod
    def encode(cls, weight: Float32[Tensor, "out in"]) -> dict[str, Tensor]:
        table, offset = torch.tensor(NF4, device=weight.device), None
        codes, scales = encode_blocks(weight.float().flatten(), table, BLOCK)
        if len(codes) % 2:
            codes = torch.cat([codes, codes.new_tensor([NF4.index(0.0)])])
        stored = {"weight": (codes[::2] << 4 | codes[1::2])[:, None], "weight.absmax": scales, "weight.quant_map": table}
        if cls.DOUBLE:
            mean, nested = scales.mean(), torch.tensor(dynamic_values(), device=weight.device)
            stored["weight.absmax"], stored["weight.nested_absmax"] = encode_blocks(scales - mean, nested, NESTED_BLOCK)
            stored["weight.nested_quant_map"], offset = nested, mean.item()
        state = state_of(*weight.shape, offset)
        return {**stored, STATE: torch.tensor(list(state), dtype=torch.uint8, device=weight.device)}

    @classmethod
    def decode(cls, stored: Mapping[str, Tensor]) -> Float32[Tensor, "out in"]:
        state = json.loads(bytes(stored[STATE].tolist()))
        scales, packed = stored["weight.absmax"], stored["weight"].flatten()
        if cls.DOUBLE:
            scales = state["nested_offset"] + decode_blocks(scales, stored["weight.nested_quant_map"],
                                                            stored["weight.nested_absmax"], NESTED_BLOCK)
        codes = torch.stack((packed >> 4, packed & 15), dim=1).flatten()
        rows, width = state["shape"]
        return decode_blocks(codes[:rows * width], stored["weight.quant_map"], scales, BLOCK).view(rows, width)

    def decoded(self) -> Float32[Tensor, "out in"]:
        return torch.cat([layer.decoded() for layer in self.joined]) if self.joined else super().decoded()

    @classmethod
    def fused(cls, layers: Sequence[Self]) -> Self:
        """Layers over one input as a single layer, which keeps them and joins their dense weights: a block may cross from one
        weight into the next, and each weight has an offset of its own."""
        whole = cls._joined(layers, ())
        whole.joined, whole._dense = tuple(layers), None
        return whole


class DoubleNf4Linear(Nf4Linear):
    """The same with scales in 8 bits."""

    DOUBLE = True

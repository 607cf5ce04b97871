"""FP8 in blocks: float8 (e4m3) weights with a scale for each block of 128 x 128, activations with one for each 128 inputs of a
token, as DeepSeek-V3 was trained (arXiv 2412.19437, section 3.3.2). compressed-tensors' preset FP8_BLOCK.

scale = absmax / 448. Blocks at the lower and right edge of a weight may be cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from model_ops.quantization.fp8_linear import LARGEST, SMALLEST_SCALE, quantize_fp8
from model_ops.quantization.quantized_linear import QuantizedLinear

BLOCK = 128


class Fp8BlockLinear(QuantizedLinear):
    """A Linear layer with float8 weights in blocks and float8 activations in groups; output in the activations' dtype."""

    weight: Tensor
    weight_scale: Float32[Tensor, "row_blocks column_blocks"]

    @staticmethod
    def encode(weight: Float32[Tensor, "out in"]) -> dict[str, Tensor]:
        rows, columns = weight.shape
        padded = nn.functional.pad(weight, (0, -columns % BLOCK, 0, -rows % BLOCK))
        blocks = padded.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
        scale = (blocks.abs().amax(dim=(1, 3)) / LARGEST).clamp(min=SMALLEST_SCALE)
        codes = (weight / _spread(scale, rows, columns)).clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale": scale}

    @staticmethod
    def decode(stored: Mapping[str, Tensor]) -> Float32[Tensor, "out in"]:
        weight = stored["weight"].float()
        return weight * _spread(stored["weight_scale"].float(), *weight.shape)

    def forward(self, hidden: Float[Tensor, "*tokens in"]) -> Float[Tensor, "*tokens out"]:
        groups, scale = quantize_fp8(hidden.unflatten(-1, (-1, BLOCK)))
        weight = self.decode({"weight": self.weight, "weight_scale": self.weight_scale})
        seen = (groups.float() * scale).flatten(-2)
        if hidden.is_cuda:  # float32 would be multiplied without the units for matrices
            seen, weight = seen.to(hidden.dtype), weight.to(hidden.dtype)
        output = nn.functional.linear(seen, weight).to(hidden.dtype)
        return output if self.bias is None else output + self.bias

    @classmethod
    def fused(cls, layers: Sequence[Self]) -> Self:
        whole = cls._joined(layers, ("weight",))  # a block may end within the joined rows: each row gets its own scales
        rows = [_rows(layer.weight_scale, layer.out_features) for layer in layers]
        whole.register_buffer("weight_scale", torch.cat(rows))
        return whole


def _rows(scale: Float32[Tensor, "row_blocks column_blocks"], rows: int) -> Float32[Tensor, "rows column_blocks"]:
    """The scales of each row; a joined layer has them so already."""
    return scale if scale.shape[0] == rows else scale.repeat_interleave(BLOCK, 0)[:rows]


def _spread(scale: Float32[Tensor, "row_blocks column_blocks"], rows: int, columns: int) -> Float32[Tensor, "rows columns"]:
    return _rows(scale, rows).repeat_interleave(BLOCK, 1)[:, :columns]

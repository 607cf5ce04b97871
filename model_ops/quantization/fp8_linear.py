"""FP8 with dynamic activations: float8 (e4m3) weights with a scale per output channel, activations with one per token.

scale = absmax / 448, the largest finite value of e4m3 (Micikevicius et al., arXiv 2209.05433). Products are computed in
float32, then times both scales: compressed-tensors' "float-quantized" format, preset FP8_DYNAMIC, which needs no calibration.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from model_ops.quantization.quantized_linear import QuantizedLinear

LARGEST = torch.finfo(torch.float8_e4m3fn).max
SMALLEST_SCALE = 1e-12


def quantize_fp8(values: Float[Tensor, "*rows width"]) -> tuple[Tensor, Float32[Tensor, "*rows 1"]]:
    """Each row as float8_e4m3fn and its scale."""
    values = values.float()
    scale = (values.abs().amax(dim=-1, keepdim=True) / LARGEST).clamp(min=SMALLEST_SCALE)
    return (values / scale).clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale


class Fp8Linear(QuantizedLinear):
    """A Linear layer with float8 weights and per-token float8 activations; output in the activations' dtype."""

    weight: Tensor
    weight_scale: Float32[Tensor, "out 1"]

    @staticmethod
    def encode(weight: Float32[Tensor, "out in"]) -> dict[str, Tensor]:
        quantized, scale = quantize_fp8(weight)
        return {"weight": quantized, "weight_scale": scale}

    @staticmethod
    def decode(stored: Mapping[str, Tensor]) -> Float32[Tensor, "out in"]:
        return stored["weight"].float() * stored["weight_scale"].float()

    def forward(self, hidden: Float[Tensor, "*tokens in"]) -> Float[Tensor, "*tokens out"]:
        flat, scale = quantize_fp8(hidden.reshape(-1, self.in_features))
        product = flat.float() @ self.weight.float().t()
        output = product.mul_(scale).mul_(self.weight_scale.t()).to(hidden.dtype)
        if self.bias is not None:
            output = output + self.bias
        return output.view(*hidden.shape[:-1], self.out_features)

"""FP8 with dynamic activations: float8 (e4m3) weights with a scale per output channel, activations with one per token.

scale = absmax / 448, the largest finite value of e4m3 (Micikevicius et al., arXiv 2209.05433). Products are summed in
float32, then times both scales: compressed-tensors' "float-quantized" format, preset FP8_DYNAMIC, which needs no calibration.
CUDA devices with FP8 units (compute capability 8.9 and later) multiply the codes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
from jaxtyping import Float, Float8e4m3fn, Float32
from torch import Tensor

from model_ops.quantization.quantized_linear import QuantizedLinear
from model_ops.tensors import torch_internals

LARGEST = torch.finfo(torch.float8_e4m3fn).max
SMALLEST_SCALE = 1e-12
FIRST_WITH_FP8, KERNEL_MULTIPLE = (8, 9), 16
"""Compute capability from which CUDA has FP8 units; widths that torch's kernel takes are multiples."""


def quantize_fp8(values: Float[Tensor, "*rows width"]) -> tuple[Tensor, Float32[Tensor, "*rows 1"]]:
    """Each row as float8_e4m3fn and its scale."""
    values = values.float()
    scale = (values.abs().amax(dim=-1, keepdim=True) / LARGEST).clamp(min=SMALLEST_SCALE)
    return (values / scale).clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale


def fp8_product(
    left: Float8e4m3fn[Tensor, "m k"],
    right: Float8e4m3fn[Tensor, "n k"],
    left_scale: Float32[Tensor, "m 1"],
    right_scale: Float32[Tensor, "n 1"],
    dtype: torch.dtype,
) -> Float[Tensor, "m n"]:
    """left @ right.T, times both scales, in `dtype`."""
    suits = all(size % KERNEL_MULTIPLE == 0 for size in right.shape)
    if left.is_cuda and suits and kernel_suits(left.device):
        return fp8_product_scaled(left, right, left_scale, right_scale, dtype)
    # codes are exact in bfloat16; on CUDA float32 would be multiplied without the units for matrices
    exact = torch.bfloat16 if left.is_cuda else torch.float32
    return (left.to(exact) @ right.to(exact).t()).float().mul_(left_scale).mul_(right_scale.t()).to(dtype)


def fp8_product_scaled(left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The same by torch's kernel, which gives bfloat16 where each row has a scale. k and n are multiples of 16."""
    scales = left_scale.contiguous(), right_scale.float().t().contiguous()
    return torch_internals.scaled_matmul(left.contiguous(), right.t(), *scales, out_dtype=torch.bfloat16).to(dtype)


@lru_cache(maxsize=16)
def kernel_suits(device: torch.device) -> bool:
    """Whether this CUDA device multiplies FP8 codes."""
    return torch.cuda.get_device_capability(device) >= FIRST_WITH_FP8


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
        output = fp8_product(flat, self.weight, scale, self.weight_scale, hidden.dtype)
        if self.bias is not None:
            output = output + self.bias
        return output.view(*hidden.shape[:-1], self.out_features)

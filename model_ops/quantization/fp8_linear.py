"""FP8 with dynamic activations (compressed-tensors' FP8_DYNAMIC): e4m3 weights with a scale per output channel, activations
with one per token, scale = absmax / 448 (arXiv 2209.05433). Products are summed in float32; CUDA devices with FP8 units
multiply the codes themselves."""

import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Self

import torch
from jaxtyping import Float, Float8e4m3fn, Float32
from torch import Tensor, nn

from model_ops.quantization.quantized_linear import QuantizedLinear
from model_ops.tensors import torch_internals

BLOCK = 128


class Fp8BlockLinear(QuantizedLinear):
    """A Linear layer with float8 weights in blocks and float8 activations in groups; output in the activations' dtype. A scale
    for each block of 128 x 128 weights and for each 128 inputs of a token, as DeepSeek-V3 was trained (arXiv 2412.19437,
    section 3.3.2): compressed-tensors' preset FP8_BLOCK. Blocks at the lower and right edge may be cut."""

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


LARGEST = torch.finfo(torch.float8_e4m3fn).max
SMALLEST_SCALE = 1e-12
NEAR = 2e-2
"""Largest difference from plain torch, relative to the norm, at which the kernel is taken: bfloat16 differs by 4e-3."""
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
    """Whether this CUDA device multiplies FP8 codes, and as plain torch does. Tried once; a warning says why not."""
    return torch.cuda.get_device_capability(device) >= FIRST_WITH_FP8 and kernel_agrees(device)


def kernel_agrees(device: torch.device) -> bool:
    """Whether torch's kernel gives the numbers of plain torch on this device."""
    (left, left_scale), (right, right_scale) = map(quantize_fp8, torch.randn(2, 48, 64, device=device))
    plain = (left.float() * left_scale) @ (right.float() * right_scale).t()
    try:
        product = fp8_product_scaled(left, right, left_scale, right_scale, torch.bfloat16)
        furthest = float((product.float() - plain).norm() / plain.norm())
    except RuntimeError as error:  # a driver may refuse, and plain torch computes the same
        warnings.warn(f"torch's FP8 products are left out on {device}: {error}", stacklevel=2)
        return False
    if not furthest <= NEAR:
        warnings.warn(f"torch's FP8 products are left out on {device}: they differ by {furthest:.1e}", stacklevel=2)
    return furthest <= NEAR


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

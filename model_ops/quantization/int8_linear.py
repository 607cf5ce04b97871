"""int8 W8A8 as vLLM and SGLang run it (compressed-tensors' "int-quantized"): symmetric weights with a float32 scale per output
channel, activations with one per token, absmax / 127. The product is an exact int32 sum, then times both scales."""

import time
from collections.abc import Mapping
from functools import cache

import torch
from jaxtyping import Float, Float32, Int8, Int32
from torch import Tensor, nn

from model_ops.quantization.quantized_linear import PackedLinear, QuantizedLinear
from model_ops.tensors import torch_internals

SMALLEST_SCALE = 1e-12
"""Scale of a channel or token that is all zeros: any positive number keeps 0 / scale at 0."""

EXACT_FLOAT32_DEPTH = 1_024
"""Longest inner dimension whose int8 products sum exactly in float32: 1,024 * 127 * 127 < 2 ** 24."""

CUDA_FEWEST_ROWS, CUDA_MULTIPLE = 32, 8
"""Sizes that CUDA's int8 kernel takes: more than 16 rows, and inner and outer widths that are multiples of 8."""


def quantize_symmetric(values: Float[Tensor, "*rows width"]) -> tuple[Int8[Tensor, "*rows width"], Float32[Tensor, "*rows 1"]]:
    """Each row as int8 in [-127, 127] and its scale; |value - scale * int8| <= scale / 2."""
    values = values.float()
    scale = (values.abs().amax(dim=-1, keepdim=True) / 127).clamp(min=SMALLEST_SCALE)
    return (values / scale).round_().clamp_(-127, 127).to(torch.int8), scale


def int8_product(left: Int8[Tensor, "m k"], right: Int8[Tensor, "n k"]) -> Int32[Tensor, "m n"]:
    """left @ right.T as exact int32 sums: torch's int8 kernel on CUDA and on CPUs that it suits, else an equal sum of exact
    float32 products."""
    match left.device.type:
        case "cpu" if kernel_suits_cpu():
            return torch_internals.int8_matmul(left, right.t())
        case "cuda":
            return int8_product_padded(left, right)
    return int8_product_portable(left, right)


@cache
def kernel_suits_cpu() -> bool:
    """Whether torch's int8 kernel is exact on this CPU, and faster than float32 products. Where a processor has no VNNI,
    oneDNN's kernels saturate the sum of two products at 16 bits, and torch's own is a loop."""
    some = torch.arange(256 * 256).remainder(255).sub(127).to(torch.int8).view(256, 256)
    products, seconds = [], []
    for product in (lambda: torch_internals.int8_matmul(some, some.t()), lambda: int8_product_portable(some, some)):
        product()
        began_s = time.perf_counter()
        products.append(product())
        seconds.append(time.perf_counter() - began_s)
    return torch.equal(*products) and seconds[0] < seconds[1]


def int8_product_padded(left: Int8[Tensor, "m k"], right: Int8[Tensor, "n k"]) -> Int32[Tensor, "m n"]:
    """The same numbers by a kernel that refuses other sizes than CUDA's: m of at least 17, k and n multiples of 8. Zeros are
    added where a size does not suit. Decoding has one row per sequence, so m is often small; widths of models are multiples of
    8, so the weight is usually not copied."""
    rows, columns = left.shape[0], right.shape[0]
    depth = -left.shape[1] % CUDA_MULTIPLE
    product = torch_internals.int8_matmul(
        _padded(left, max(0, CUDA_FEWEST_ROWS - rows), depth), _padded(right, -columns % CUDA_MULTIPLE, depth).t()
    )
    return product[:rows, :columns]


def _padded(matrix: Int8[Tensor, "rows width"], rows: int, width: int) -> Int8[Tensor, "more wider"]:
    return nn.functional.pad(matrix, (0, width, 0, rows)) if rows or width else matrix.contiguous()


def int8_product_portable(left: Int8[Tensor, "m k"], right: Int8[Tensor, "n k"]) -> Int32[Tensor, "m n"]:
    """The same numbers on any device: float32 products over slices short enough to be exact. TF32 must be off on CUDA (torch's
    default): its 10-bit products would round."""
    total = torch.zeros(left.shape[0], right.shape[0], dtype=torch.int32, device=left.device)
    for start in range(0, left.shape[1], EXACT_FLOAT32_DEPTH):
        piece = slice(start, start + EXACT_FLOAT32_DEPTH)
        total += (left[:, piece].float() @ right[:, piece].float().t()).to(torch.int32)
    return total


class Int8Linear(QuantizedLinear):
    """A Linear layer with int8 weights and per-token int8 activations; output in the activations' dtype."""

    weight: Int8[Tensor, "out in"]
    weight_scale: Float32[Tensor, "out 1"]

    @staticmethod
    def encode(weight: Float32[Tensor, "out in"]) -> dict[str, Tensor]:
        quantized, scale = quantize_symmetric(weight)
        return {"weight": quantized, "weight_scale": scale}

    @staticmethod
    def decode(stored: Mapping[str, Tensor]) -> Float32[Tensor, "out in"]:
        return stored["weight"].float().mul_(stored["weight_scale"])

    def forward(self, hidden: Float[Tensor, "*tokens in"]) -> Float[Tensor, "*tokens out"]:
        flat, scale = quantize_symmetric(hidden.reshape(-1, self.in_features))
        product = int8_product(flat, self.weight).float()
        output = (product.mul_(scale).mul_(self.weight_scale.t())).to(hidden.dtype)
        if self.bias is not None:
            output = output + self.bias
        return output.view(*hidden.shape[:-1], self.out_features)


HIGHEST, OFFSET, PER_WORD = 127, 128, 4
SMALLEST_GROUP_SCALE = 1e-8
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
    """W8A16: a Linear layer with int8 weights in groups of 128 inputs, activations as they come, in compressed-tensors'
    "pack-quantized" format. Four codes lie in one int32, each plus 128, the first input's in the lowest eight bits."""

    GROUP_SIZE: int | None = 128
    """None: one group for all inputs."""

    @classmethod
    def encode(cls, weight: Float32[Tensor, "out in"]) -> dict[str, Tensor]:
        groups = weight.unflatten(-1, (-1, cls.GROUP_SIZE or weight.shape[-1]))
        scales = (groups.abs().amax(-1) / HIGHEST).clamp(min=SMALLEST_GROUP_SCALE).bfloat16()
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

"""W4A16 (compressed-tensors' "pack-quantized"): symmetric int4 codes in [-8, 7] with a bfloat16 scale for each group of inputs
of an output channel. Eight codes lie in one int32, each plus 8, the first input's in the lowest four bits. As in servers,
weights are turned back into the activations' dtype to multiply."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import BFloat16, Float32, Int8, Int32
from torch import Tensor

from model_ops.quantization.quantized_linear import PackedLinear

LOWEST, HIGHEST, OFFSET = -8, 7, 8
PER_WORD, BITS = 8, 4
SMALLEST_SCALE = 1e-8
"""Scale of a group that is all zeros: any positive number keeps 0 / scale at 0."""
SHRUNK = tuple(1 - step / 100 for step in range(0, 40, 2))
"""Shares of a group's full range that are tried as its range."""
CACHED_VALUES = 1 << 17
"""Values of a weight that a CPU searches scales for at once: what is computed of them stays in its cache."""


def pack_int4(codes: Int8[Tensor, "out in"]) -> Int32[Tensor, "out words"]:
    """Eight codes of [-8, 7] to a word; in must be a multiple of 8."""
    words = (codes.to(torch.int32) + OFFSET).unflatten(-1, (-1, PER_WORD))
    shifts = torch.arange(0, PER_WORD * BITS, BITS, dtype=torch.int32, device=codes.device)
    # the top code fills the sign bit: 64-bit sums wrap to the right 32 bits
    return (words.long() << shifts).sum(-1).to(torch.int32)


def unpack_int4(words: Int32[Tensor, "out words"]) -> Int8[Tensor, "out in"]:
    """The codes of packed words."""
    shifts = torch.arange(0, PER_WORD * BITS, BITS, dtype=torch.int32, device=words.device)
    return (((words[..., None] >> shifts) & 0xF) - OFFSET).flatten(-2).to(torch.int8)


def group_scales(
    weight: Float32[Tensor, "out in"],
    group_size: int,
    importance: Float32[Tensor, " in"] | None = None,
    shares: Sequence[float] = SHRUNK,
) -> BFloat16[Tensor, "out groups"]:
    """The scale of each group: of the shares of the full range (absmax / 7) tried, the one with the least squared rounding
    error, each input weighed by `importance` (its mean square; None: all alike). Clipping a few large weights often costs less
    than coarser steps for all others."""
    rows = max(1, CACHED_VALUES // weight.shape[1]) if weight.device.type == "cpu" else len(weight)
    weighed = torch.ones_like(weight[0]) if importance is None else importance.contiguous()  # a diagonal is read slowly
    return torch.cat([_group_scales(part, group_size, weighed, shares) for part in weight.split(rows)])


def _group_scales(weight: Tensor, group_size: int, importance: Tensor, shares: Sequence[float]) -> Tensor:
    groups, weighed = weight.unflatten(-1, (-1, group_size)), importance.view(-1, group_size)
    full = groups.abs().amax(-1) / HIGHEST
    best, least = None, None
    for share in shares:
        scale = (full * share).clamp(min=SMALLEST_SCALE).bfloat16()
        error = rounded(groups, scale.float()[..., None]).sub_(groups).square_().mul_(weighed).sum(-1)
        if best is None:
            best, least = scale, error
        else:
            better = error < least
            best, least = torch.where(better, scale, best), torch.where(better, error, least)
    return best


def rounded(values: Tensor, scale: Tensor) -> Tensor:
    """The values that their codes stand for."""
    return (values / scale).round_().clamp_(LOWEST, HIGHEST).mul_(scale)


def round_to_nearest(weight: Float32[Tensor, "out in"], scales: BFloat16[Tensor, "out groups"]) -> Int8[Tensor, "out in"]:
    """The code nearest to each weight."""
    groups = weight.unflatten(-1, (scales.shape[1], -1))
    return (groups / scales.float()[..., None]).round_().clamp_(LOWEST, HIGHEST).flatten(-2).to(torch.int8)


class Int4Linear(PackedLinear):
    """A Linear layer with int4 weights; products are in the dtype of the activations."""

    weight_packed: Int32[Tensor, "out words"]
    weight_scale: BFloat16[Tensor, "out groups"]

    GROUP_SIZE = 128

    @classmethod
    def encode(cls, weight: Float32[Tensor, "out in"]) -> dict[str, Tensor]:
        scales = group_scales(weight, cls.GROUP_SIZE)
        return cls.stored_parts(round_to_nearest(weight, scales), scales)

    @staticmethod
    def stored_parts(codes: Int8[Tensor, "out in"], scales: BFloat16[Tensor, "out groups"]) -> dict[str, Tensor]:
        """The stored tensors of given codes and scales."""
        return {"weight_packed": pack_int4(codes), "weight_scale": scales, "weight_shape": torch.tensor(codes.shape)}

    @staticmethod
    def decode(stored: Mapping[str, Tensor]) -> Float32[Tensor, "out in"]:
        scales = stored["weight_scale"].float()
        codes = unpack_int4(stored["weight_packed"]).unflatten(-1, (scales.shape[1], -1))
        return (codes.float() * scales[..., None]).flatten(-2)


class Int4Linear64(Int4Linear):
    """The same with groups of 64 inputs."""

    GROUP_SIZE = 64


class Int4Linear32(Int4Linear):
    """The same with groups of 32 inputs."""

    GROUP_SIZE = 32

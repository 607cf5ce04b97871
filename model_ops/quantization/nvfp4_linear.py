"""NVFP4: weights as floats of four bits, a float8 scale for each 16 inputs of a channel, a float32 scale for the whole tensor,
in compressed-tensors' "nvfp4-pack-quantized" format. Activations as they come, or rounded the same way with a global scale that
is fixed before.

weight = code * scale / global scale, with global scale = 448 * 6 / absmax of the tensor, so that the scales use all of e4m3,
and scale = global scale * absmax of the group / 6. Layers that servers join must have one global scale: vLLM takes the largest
of theirs for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from model_ops.quantization.fp4_codes import LARGEST, pack_fp4, round_fp4, unpack_fp4, values_fp4
from model_ops.quantization.fp8_linear import LARGEST as LARGEST_SCALE
from model_ops.quantization.quantized_linear import DequantizedLinear

GROUP = 16
SCALE_OF_ZEROS = 0.125
"""Stored scale of a group that is too small for e4m3, as compressed-tensors writes it."""


def global_scale(largest: Float32[Tensor, "*one"]) -> Float32[Tensor, "*one"]:
    """The global scale of values up to `largest`; 1 for zeros."""
    return (LARGEST_SCALE * LARGEST / largest).nan_to_num(nan=1.0, posinf=1.0)


def _codes(values: Float32[Tensor, "*rows width"], scale_of_all: Tensor) -> tuple[Tensor, Float32[Tensor, "*rows groups"]]:
    """Codes by group, and the groups' scales as e4m3 holds them."""
    groups = values.unflatten(-1, (-1, GROUP))
    scale = (scale_of_all * (groups.abs().amax(-1) / LARGEST)).clamp(max=LARGEST_SCALE).to(torch.float8_e4m3fn).float()
    scale = torch.where(scale == 0, SCALE_OF_ZEROS, scale)
    return round_fp4(groups / (scale / scale_of_all)[..., None]), scale


class Nvfp4WeightLinear(DequantizedLinear):
    """A Linear layer with NVFP4 weights."""

    @staticmethod
    def encode(weight: Float32[Tensor, "out in"], largest: float | None = None) -> dict[str, Tensor]:
        """largest: the largest absolute weight of all layers that share the global scale (None: of this one)."""
        whole = weight.abs().max() if largest is None else torch.tensor(largest, device=weight.device)
        scale_of_all = global_scale(whole)
        codes, scale = _codes(weight, scale_of_all)
        return {
            "weight_packed": pack_fp4(codes.flatten(-2)),
            "weight_scale": scale.to(torch.float8_e4m3fn),
            "weight_global_scale": scale_of_all.reshape(1),
        }

    @staticmethod
    def decode(stored: Mapping[str, Tensor]) -> Float32[Tensor, "out in"]:
        scale = stored["weight_scale"].float() / stored["weight_global_scale"].reshape(-1, 1)
        values = values_fp4(unpack_fp4(stored["weight_packed"])).unflatten(-1, (-1, GROUP))
        return (values * scale[..., None]).flatten(-2)

    @classmethod
    def fused(cls, layers: Sequence[Self]) -> Self:
        whole = cls._joined(layers, ("weight_packed", "weight_scale"))
        rows = [layer.weight_global_scale.reshape(-1).expand(layer.out_features) for layer in layers]
        whole.register_buffer("weight_global_scale", torch.cat(rows))  # one for each row
        whole._dense = None
        return whole


class Nvfp4Linear(Nvfp4WeightLinear):
    """A Linear layer with NVFP4 weights and activations."""

    input_global_scale: Float32[Tensor, " 1"]
    """Global scale of the activations, from calibration rows."""

    @staticmethod
    def encode(weight: Float32[Tensor, "out in"], largest: float | None = None) -> dict[str, Tensor]:
        return {**Nvfp4WeightLinear.encode(weight, largest), "input_global_scale": torch.ones(1, device=weight.device)}

    @staticmethod
    def input_scale_of(largest: float) -> Float32[Tensor, " 1"]:
        """The global scale of activations up to `largest`; larger ones are cut off."""
        return global_scale(torch.tensor([largest]))

    def rounded(self, hidden: Float[Tensor, "*tokens in"]) -> Float[Tensor, "*tokens in"]:
        codes, scale = _codes(hidden.float(), self.input_global_scale)
        return (values_fp4(codes) * (scale / self.input_global_scale)[..., None]).flatten(-2).to(hidden.dtype)

    @classmethod
    def fused(cls, layers: Sequence[Self]) -> Self:
        whole = super().fused(layers)
        whole.register_buffer("input_global_scale", layers[0].input_global_scale)  # of the input that all of them read
        return whole

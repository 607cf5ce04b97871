"""NVFP4: weights as floats of four bits, a float8 scale for each 16 inputs of a channel, a float32 scale for the whole tensor,
in compressed-tensors' "nvfp4-pack-quantized" format. Activations as they come.

weight = code * scale / global scale, with global scale = 448 * 6 / absmax of the tensor, so that the scales use all of e4m3,
and scale = global scale * absmax of the group / 6. Layers that servers join must have one global scale: vLLM takes the largest
of theirs for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from jaxtyping import Float32
from torch import Tensor

from model_ops.quantization.dequantized_linear import DequantizedLinear
from model_ops.quantization.fp4_codes import LARGEST, pack_fp4, round_fp4, unpack_fp4, values_fp4
from model_ops.quantization.fp8_linear import LARGEST as LARGEST_SCALE

GROUP = 16
SCALE_OF_ZEROS = 0.125
"""Stored scale of a group that is too small for e4m3, as compressed-tensors writes it."""


class Nvfp4WeightLinear(DequantizedLinear):
    """A Linear layer with NVFP4 weights."""

    @staticmethod
    def encode(weight: Float32[Tensor, "out in"], largest: float | None = None) -> dict[str, Tensor]:
        """largest: the largest absolute weight of all layers that share the global scale (None: of this one)."""
        whole = weight.abs().max() if largest is None else torch.tensor(largest, device=weight.device)
        global_scale = (LARGEST_SCALE * LARGEST / whole).nan_to_num(nan=1.0, posinf=1.0)
        groups = weight.unflatten(-1, (-1, GROUP))
        scale = (global_scale * (groups.abs().amax(-1) / LARGEST)).clamp(max=LARGEST_SCALE).to(torch.float8_e4m3fn).float()
        scale = torch.where(scale == 0, SCALE_OF_ZEROS, scale)
        codes = round_fp4(groups / (scale / global_scale)[..., None]).flatten(-2)
        return {"weight_packed": pack_fp4(codes), "weight_scale": scale.to(torch.float8_e4m3fn),
                "weight_global_scale": global_scale.reshape(1)}

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

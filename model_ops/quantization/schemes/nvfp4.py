"""nvfp4: weights and activations as floats of four bits, a float8 scale for each 16 inputs and a float32 scale for the tensor,
that of activations from calibration rows. nvfp4a16: activations stay in bfloat16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model_ops.files import Layout
from model_ops.jobs import ModelError
from model_ops.quantization.scheme import Precision, Scheme

if TYPE_CHECKING:
    from model_ops.quantization.quantized_linear import QuantizedLinear

GROUP = 16


def _stored(out_features: int, in_features: int) -> Layout:
    if in_features % GROUP:
        raise ModelError(f"a layer has {in_features} inputs, no multiple of the {GROUP} that share a scale: choose scheme w8a8")
    return {
        "weight_packed": ("U8", (out_features, in_features // 2)),
        "weight_scale": ("F8_E4M3", (out_features, in_features // GROUP)),
        "weight_global_scale": ("F32", (1,)),
    }


def _stored_with_input(out_features: int, in_features: int) -> Layout:
    return {**_stored(out_features, in_features), "input_global_scale": ("F32", (1,))}


def _load_layer() -> type[QuantizedLinear]:
    from model_ops.quantization.nvfp4_linear import Nvfp4Linear

    return Nvfp4Linear


def _load_weight_layer() -> type[QuantizedLinear]:
    from model_ops.quantization.nvfp4_linear import Nvfp4WeightLinear

    return Nvfp4WeightLinear


FORMAT, SCALES = "nvfp4-pack-quantized", "torch.float8_e4m3fn"
WEIGHTS = Precision(4, "float", "tensor_group", group_size=GROUP, scale_dtype=SCALES)
NVFP4 = Scheme(
    name="nvfp4",
    title="NVFP4",
    format=FORMAT,
    weights=WEIGHTS,
    activations=Precision(4, "float", "tensor_group", dynamic="local", group_size=GROUP, scale_dtype=SCALES),
    stored=_stored_with_input,
    load_layer=_load_layer,
    shares_range=True,
    input_scale="input_global_scale",
)
NVFP4A16 = Scheme(
    name="nvfp4a16",
    title="NVFP4 weights",
    format=FORMAT,
    weights=WEIGHTS,
    activations=None,
    stored=_stored,
    load_layer=_load_weight_layer,
    shares_range=True,
)

"""fp8: float8 weights with a scale per output channel, float8 activations with a scale per token, as they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model_ops.files import Layout
from model_ops.quantization.scheme import Precision, Scheme

if TYPE_CHECKING:
    from model_ops.quantization.quantized_linear import QuantizedLinear


def _stored(out_features: int, in_features: int) -> Layout:
    return {"weight": ("F8_E4M3", (out_features, in_features)), "weight_scale": ("F32", (out_features, 1))}


def _load_layer() -> type[QuantizedLinear]:
    from model_ops.quantization.fp8_linear import Fp8Linear

    return Fp8Linear


FP8 = Scheme(
    name="fp8",
    title="FP8 with dynamic activations",
    format="float-quantized",
    weights=Precision(8, "float", "channel"),
    activations=Precision(8, "float", "token", dynamic=True),
    stored=_stored,
    load_layer=_load_layer,
)

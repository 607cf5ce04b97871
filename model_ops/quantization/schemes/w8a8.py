"""w8a8: int8 weights with a scale per output channel, int8 activations with a scale per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model_ops.files import Layout
from model_ops.quantization.scheme import Precision, Scheme

if TYPE_CHECKING:
    from model_ops.quantization.quantized_linear import QuantizedLinear


def _stored(out_features: int, in_features: int) -> Layout:
    return {"weight": ("I8", (out_features, in_features)), "weight_scale": ("F32", (out_features, 1))}


def _load_layer() -> type[QuantizedLinear]:
    from model_ops.quantization.int8_linear import Int8Linear

    return Int8Linear


W8A8 = Scheme(
    name="w8a8",
    title="int8 W8A8",
    format="int-quantized",
    weights=Precision(8, "int", "channel"),
    activations=Precision(8, "int", "token", dynamic=True),
    stored=_stored,
    load_layer=_load_layer,
)

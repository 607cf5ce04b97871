"""w4a16: int4 weights with a scale per group of inputs; activations stay in bfloat16. Groups of 128, 64 or 32."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from model_ops.files import Layout
from model_ops.jobs import ModelError
from model_ops.quantization.scheme import Precision, Scheme

if TYPE_CHECKING:
    from model_ops.quantization.quantized_linear import QuantizedLinear

PER_WORD = 8


def _stored(group_size: int) -> Callable[[int, int], Layout]:
    def stored(out_features: int, in_features: int) -> Layout:
        if in_features % group_size:
            fits = [f"w4a16_g{size}" for size in (64, 32) if in_features % size == 0]
            remedy = f"choose scheme {fits[0]}" if fits else "choose scheme w8a8"
            raise ModelError(f"a layer has {in_features} inputs, no multiple of the {group_size} that share a scale: {remedy}")
        return {
            "weight_packed": ("I32", (out_features, in_features // PER_WORD)),
            "weight_scale": ("BF16", (out_features, in_features // group_size)),
            "weight_shape": ("I64", (2,)),
        }

    return stored


def _load_layer(group_size: int) -> Callable[[], type[QuantizedLinear]]:
    def load_layer() -> type[QuantizedLinear]:
        from model_ops.quantization import int4_linear

        return {128: int4_linear.Int4Linear, 64: int4_linear.Int4Linear64, 32: int4_linear.Int4Linear32}[group_size]

    return load_layer


def _described(name: str, group_size: int) -> Scheme:
    return Scheme(
        name=name,
        title=f"int4 W4A16 in groups of {group_size}",
        format="pack-quantized",
        weights=Precision(4, "int", "group", group_size=group_size),
        activations=None,
        stored=_stored(group_size),
        load_layer=_load_layer(group_size),
        calibrated=True,
    )


W4A16, W4A16_G64, W4A16_G32 = _described("w4a16", 128), _described("w4a16_g64", 64), _described("w4a16_g32", 32)

"""The quantization schemes, in the order of messages and docs. To add one, add its layer to the room and its `Scheme` here. No
torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from model_ops.files import Layout
from model_ops.jobs import ModelError
from model_ops.quantization.scheme import Precision, Scheme

if TYPE_CHECKING:
    from model_ops.quantization.quantized_linear import QuantizedLinear

BLOCK = 128
"""Rows and columns of a weight that share a scale of fp8_block."""


def _layer(name: str) -> Callable[[], type[QuantizedLinear]]:
    """Loads a layer's class, which imports torch."""

    def load() -> type[QuantizedLinear]:
        from model_ops.quantization.fp8_linear import Fp8BlockLinear, Fp8Linear
        from model_ops.quantization.int4_linear import Int4Linear, Int4Linear32, Int4Linear64
        from model_ops.quantization.int8_linear import ChannelInt8Linear, Int8Linear, PackedInt8Linear

        layers: tuple[type[QuantizedLinear], ...] = (
            *(Fp8BlockLinear, Fp8Linear, Int4Linear, Int4Linear32, Int4Linear64),
            *(Int8Linear, ChannelInt8Linear, PackedInt8Linear),
        )
        return next(layer for layer in layers if layer.__name__ == name)

    return load


def _by_channel(dtype: str) -> Callable[[int, int], Layout]:
    """One byte for each weight and a scale for each output channel."""
    return lambda outputs, inputs: {"weight": (dtype, (outputs, inputs)), "weight_scale": ("F32", (outputs, 1))}


def _refuse_rest(inputs: int, size: int, scheme: str) -> None:
    if inputs % size:
        raise ModelError(f"a layer has {inputs} inputs, no multiple of the {size} that share a scale: choose scheme {scheme}")


def _in_blocks(outputs: int, inputs: int) -> Layout:
    _refuse_rest(inputs, BLOCK, "fp8")
    return {"weight": ("F8_E4M3", (outputs, inputs)), "weight_scale": ("F32", (math.ceil(outputs / BLOCK), inputs // BLOCK))}


def _packed(bits: int, group_size: int | None) -> Callable[[int, int], Layout]:
    """Integers in words of 32 bits and a scale for each group of inputs; None: for each output channel."""

    def stored(outputs: int, inputs: int) -> Layout:
        if group_size:
            smaller = next((f"w4a16_g{size}" for size in (64, 32) if inputs % size == 0), "w8a8")
            _refuse_rest(inputs, group_size, smaller if bits == 4 else "w8a16_channel")
        return {
            "weight_packed": ("I32", (outputs, math.ceil(inputs * bits / 32))),
            "weight_scale": ("BF16", (outputs, inputs // group_size if group_size else 1)),
            "weight_shape": ("I64", (2,)),
        }

    return stored


FP8 = Scheme(
    "fp8",
    title="FP8 with dynamic activations",
    format="float-quantized",
    weights=Precision(8, "float", "channel"),
    activations=Precision(8, "float", "token", dynamic=True),
    stored=_by_channel("F8_E4M3"),
    load_layer=_layer("Fp8Linear"),
)
FP8_BLOCK = Scheme(
    "fp8_block",
    title="FP8 in blocks",
    format="float-quantized",
    weights=Precision(8, "float", "block", block_structure=(BLOCK, BLOCK)),
    activations=Precision(8, "float", "group", dynamic=True, group_size=BLOCK),
    stored=_in_blocks,
    load_layer=_layer("Fp8BlockLinear"),
    output_block=BLOCK,
)


def _int4(name: str, group_size: int, layer: str) -> Scheme:
    return Scheme(
        name,
        title=f"int4 W4A16 in groups of {group_size}",
        format="pack-quantized",
        weights=Precision(4, "int", "group", group_size=group_size),
        activations=None,
        stored=_packed(4, group_size),
        load_layer=_layer(layer),
        calibrated=True,
    )


W4A16 = _int4("w4a16", 128, "Int4Linear")
W4A16_G64 = _int4("w4a16_g64", 64, "Int4Linear64")
W4A16_G32 = _int4("w4a16_g32", 32, "Int4Linear32")
W8A8 = Scheme(
    "w8a8",
    title="int8 W8A8",
    format="int-quantized",
    weights=Precision(8, "int", "channel"),
    activations=Precision(8, "int", "token", dynamic=True),
    stored=_by_channel("I8"),
    load_layer=_layer("Int8Linear"),
)
W8A16 = Scheme(
    "w8a16",
    title="int8 W8A16 in groups of 128",
    format="pack-quantized",
    weights=Precision(8, "int", "group", group_size=128),
    activations=None,
    stored=_packed(8, 128),
    load_layer=_layer("PackedInt8Linear"),
)
W8A16_CHANNEL = Scheme(
    "w8a16_channel",
    title="int8 W8A16 by channel",
    format="pack-quantized",
    weights=Precision(8, "int", "channel"),
    activations=None,
    stored=_packed(8, None),
    load_layer=_layer("ChannelInt8Linear"),
)

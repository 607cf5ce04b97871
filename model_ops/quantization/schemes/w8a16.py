"""w8a16: int8 weights with a scale for each 128 inputs of a channel (w8a16_channel: for the channel), packed into int32;
activations stay in bfloat16."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from model_ops.files import Layout
from model_ops.jobs import ModelError
from model_ops.quantization.scheme import Precision, Scheme

if TYPE_CHECKING:
    from model_ops.quantization.quantized_linear import QuantizedLinear

PER_WORD, GROUP = 4, 128


def _stored(group_size: int | None) -> Callable[[int, int], Layout]:
    def stored(out_features: int, in_features: int) -> Layout:
        if in_features % (group_size or 1):
            raise ModelError(
                f"a layer has {in_features} inputs, no multiple of the {group_size} that share a scale: choose "
                "scheme w8a16_channel"
            )
        return {
            "weight_packed": ("I32", (out_features, math.ceil(in_features / PER_WORD))),
            "weight_scale": ("BF16", (out_features, in_features // group_size if group_size else 1)),
            "weight_shape": ("I64", (2,)),
        }

    return stored


def _load_group() -> type[QuantizedLinear]:
    from model_ops.quantization.int8_packed_linear import PackedInt8Linear

    return PackedInt8Linear


def _load_channel() -> type[QuantizedLinear]:
    from model_ops.quantization.int8_packed_linear import ChannelInt8Linear

    return ChannelInt8Linear


W8A16 = Scheme(
    name="w8a16",
    title=f"int8 W8A16 in groups of {GROUP}",
    format="pack-quantized",
    weights=Precision(8, "int", "group", group_size=GROUP),
    activations=None,
    stored=_stored(GROUP),
    load_layer=_load_group,
)
W8A16_CHANNEL = Scheme(
    name="w8a16_channel",
    title="int8 W8A16 by channel",
    format="pack-quantized",
    weights=Precision(8, "int", "channel"),
    activations=None,
    stored=_stored(None),
    load_layer=_load_channel,
)

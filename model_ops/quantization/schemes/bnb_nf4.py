"""bnb_nf4: 4-bit NormalFloat weights in blocks of 64 (QLoRA, arXiv 2305.14314) in the format of bitsandbytes; activations stay
in bfloat16. bnb_nf4_double: the scales of the blocks are 8 bits, too ("double quantization")."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from model_ops.quantization.bitsandbytes_state import BLOCK, NESTED_BLOCK, STATE, state_of
from model_ops.quantization.scheme import Precision, Scheme
from model_ops.tensor_files import Layout

if TYPE_CHECKING:
    from model_ops.quantization.quantized_linear import QuantizedLinear

def _stored(double: bool) -> Callable[[int, int], Layout]:
    def stored(out_features: int, in_features: int) -> Layout:
        weights = out_features * in_features
        blocks = math.ceil(weights / BLOCK)
        parts: Layout = {"weight": ("U8", (math.ceil(weights / 2), 1)),
                         "weight.absmax": ("U8" if double else "F32", (blocks,)), "weight.quant_map": ("F32", (16,))}
        if double:
            parts |= {"weight.nested_absmax": ("F32", (math.ceil(blocks / NESTED_BLOCK),)),
                      "weight.nested_quant_map": ("F32", (256,))}
        return {**parts, STATE: ("U8", (len(state_of(out_features, in_features, 0.0 if double else None)),))}

    return stored


def _load_layer() -> type[QuantizedLinear]:
    from model_ops.quantization.nf4_linear import Nf4Linear

    return Nf4Linear


def _load_double() -> type[QuantizedLinear]:
    from model_ops.quantization.nf4_linear import DoubleNf4Linear

    return DoubleNf4Linear


def _keys(double: bool) -> tuple[tuple[str, object], ...]:
    return (("load_in_4bit", True), ("bnb_4bit_quant_type", "nf4"), ("bnb_4bit_use_double_quant", double),
            ("bnb_4bit_quant_storage", "uint8"))


BNB_NF4 = Scheme(
    name="bnb_nf4", title="bitsandbytes nf4", format="nf4", weights=Precision(4, "float", "group", group_size=BLOCK),
    activations=None, stored=_stored(False), load_layer=_load_layer, bitsandbytes=_keys(False))
BNB_NF4_DOUBLE = Scheme(
    name="bnb_nf4_double", title="bitsandbytes nf4 with double quantization", format="nf4-double",
    weights=Precision(4, "float", "group", group_size=BLOCK), activations=None, stored=_stored(True), load_layer=_load_double,
    bitsandbytes=_keys(True))

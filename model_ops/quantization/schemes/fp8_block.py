"""fp8_block: float8 weights with a scale for each block of 128 x 128, float8 activations with one for each 128
inputs of a token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from model_ops.files import Layout
from model_ops.jobs import ModelError
from model_ops.quantization.scheme import Precision, Scheme

if TYPE_CHECKING:
    from model_ops.quantization.quantized_linear import QuantizedLinear

BLOCK = 128


def _stored(out_features: int, in_features: int) -> Layout:
    if in_features % BLOCK:
        raise ModelError(f"a layer has {in_features} inputs, no multiple of the {BLOCK} that share a scale: choose scheme fp8")
    return {
        "weight": ("F8_E4M3", (out_features, in_features)),
        "weight_scale": ("F32", (math.ceil(out_features / BLOCK), in_features // BLOCK)),
    }


def _load_layer() -> type[QuantizedLinear]:
    from model_ops.quantization.fp8_block_linear import Fp8BlockLinear

    return Fp8BlockLinear


FP8_BLOCK = Scheme(
    name="fp8_block",
    title="FP8 in blocks",
    format="float-quantized",
    weights=Precision(8, "float", "block", block_structure=(BLOCK, BLOCK)),
    activations=Precision(8, "float", "group", dynamic=True, group_size=BLOCK),
    stored=_stored,
    load_layer=_load_layer,
    output_block=BLOCK,
)

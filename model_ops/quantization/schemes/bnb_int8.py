"""bnb_int8: LLM.int8() (arXiv 2208.07339) in the format of bitsandbytes: int8 weights with a scale per output channel, int8
activations with a scale per token; inputs with large values are multiplied in 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model_ops.quantization.bitsandbytes_state import THRESHOLD
from model_ops.quantization.scheme import Precision, Scheme
from model_ops.tensor_files import Layout

if TYPE_CHECKING:
    from model_ops.quantization.quantized_linear import QuantizedLinear


def _stored(out_features: int, in_features: int) -> Layout:
    return {"weight": ("I8", (out_features, in_features)), "SCB": ("F32", (out_features,)), "weight_format": ("U8", ())}


def _load_layer() -> type[QuantizedLinear]:
    from model_ops.quantization.llm_int8_linear import LlmInt8Linear

    return LlmInt8Linear


BNB_INT8 = Scheme(
    name="bnb_int8", title="bitsandbytes int8", format="llm-int8", weights=Precision(8, "int", "channel"),
    activations=Precision(8, "int", "token", dynamic=True), stored=_stored, load_layer=_load_layer,
    bitsandbytes=(("load_in_8bit", True), ("llm_int8_threshold", THRESHOLD), ("llm_int8_has_fp16_weight", False)))

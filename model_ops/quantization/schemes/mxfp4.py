"""mxfp4: weights and activations as floats of four bits, a power of two for each 32 inputs. mxfp4a16: activations stay in
bfloat16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model_ops.files import Layout
from model_ops.jobs import ModelError
from model_ops.quantization.scheme import Precision, Scheme

if TYPE_CHECKING:
    from model_ops.quantization.quantized_linear import QuantizedLinear

GROUP, FORMAT, SCALES = 32, "mxfp4-pack-quantized", "torch.uint8"


def _stored(out_features: int, in_features: int) -> Layout:
    if in_features % GROUP:
        raise ModelError(f"a layer has {in_features} inputs, no multiple of the {GROUP} that share a scale: choose scheme w8a8")
    return {
        "weight_packed": ("U8", (out_features, in_features // 2)),
        "weight_scale": ("U8", (out_features, in_features // GROUP)),
    }


def _load_weight_layer() -> type[QuantizedLinear]:
    from model_ops.quantization.mxfp4_linear import Mxfp4WeightLinear

    return Mxfp4WeightLinear


def _load_layer() -> type[QuantizedLinear]:
    from model_ops.quantization.mxfp4_linear import Mxfp4Linear

    return Mxfp4Linear


WEIGHTS = Precision(4, "float", "group", group_size=GROUP, scale_dtype=SCALES)
MXFP4 = Scheme(
    name="mxfp4",
    title="MXFP4",
    format=FORMAT,
    weights=WEIGHTS,
    activations=Precision(4, "float", "group", dynamic=True, group_size=GROUP, scale_dtype=SCALES),
    stored=_stored,
    load_layer=_load_layer,
)
MXFP4A16 = Scheme(
    name="mxfp4a16",
    title="MXFP4 weights",
    format=FORMAT,
    weights=WEIGHTS,
    activations=None,
    stored=_stored,
    load_layer=_load_weight_layer,
)

"""Quantization schemes: what each stores, in the layout of compressed-tensors, and layers that compute what a server computes
with it. `schemes.py` lists the schemes; start with `scheme.py`, then `int4_linear.py`. Choosing codes and scales is in
`calibration`."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.quantization import int4_linear
    from model_ops.quantization.fp8_linear import LARGEST, SMALLEST_SCALE
    from model_ops.quantization.int8_linear import Int8Linear, int8_product, quantize_symmetric
    from model_ops.quantization.model_layers import (
        EACH,
        PARTS,
        BlockLayers,
        SeparateExperts,
        block_layers,
        fused_layers,
        model_of_config,
        unfuse,
    )
    from model_ops.quantization.quantized_linear import QuantizedLinear
    from model_ops.quantization.quantized_model import SCALES, cache_layers, is_quantized, load_quantized, watch_cache
    from model_ops.quantization.scheme import Scheme
    from model_ops.quantization.schemes import SCHEMES, Quantization, announce, quantization_of
    from model_ops.quantization.straight_through import compute_rounded, served_layer, share_codes

__getattr__, __dir__, __all__ = door(__name__, __file__)

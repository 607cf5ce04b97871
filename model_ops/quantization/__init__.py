"""Quantization schemes: what each stores, in the layout of compressed-tensors, and layers that compute what a server computes
with it.

Choosing codes and scales from data is in `calibration`. `schemes.py` lists the schemes, `registry.py` finds one by
name or config, and each `*_linear.py` is the layer of one format, with `encode`, `decode` and `forward`. Start with
`scheme.py`, then `int4_linear.py`. `quantized_model.py` loads a quantized directory.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.quantization import int4_linear
    from model_ops.quantization.fp8_linear import LARGEST, SMALLEST_SCALE
    from model_ops.quantization.int8_linear import Int8Linear, int8_product, quantize_symmetric
    from model_ops.quantization.kv_cache import SCALES, cache_layers, watch_cache
    from model_ops.quantization.model_layers import BlockLayers, block_layers, fused_layers, model_of_config
    from model_ops.quantization.quantized_linear import QuantizedLinear
    from model_ops.quantization.quantized_model import is_quantized, load_quantized
    from model_ops.quantization.registry import SCHEMES, Quantization, announce, quantization_of
    from model_ops.quantization.scheme import Scheme
    from model_ops.quantization.separate_experts import EACH, PARTS, SeparateExperts, separated
    from model_ops.quantization.straight_through import compute_rounded, served_layer, share_codes

__getattr__, __dir__, __all__ = door(__name__, __file__)

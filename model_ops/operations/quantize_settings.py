"""Settings of operation `quantize`. Importing this file imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from model_ops.quantization.registry import SCHEMES
from model_ops.settings import Settings


class QuantizeSettings(Settings):
    """Post-training quantization in the compressed-tensors layout."""

    enabled: bool = Field(True, description="false: the model is served as it was trained, without quantization")
    scheme: Literal[tuple(SCHEMES)] = Field("w8a8", description="int8 weights per output channel, int8 activations per token")
    mtp_layer: bool = Field(
        False, description="config.json tells servers that the multi-token-prediction layer is not quantized. A "
        "recipe with speculator.architecture mtp sets it; leave it out")

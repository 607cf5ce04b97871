"""Writes what a quantized directory's config.json says of its weights, through the compressed-tensors library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from model_ops.quantization.scheme import FP8_CACHE, Scheme


def announce(scheme: Scheme, directory: Path, ignore: Sequence[str] = ("lm_head",), cache: bool = False) -> None:
    """Adds `quantization_config` to the config.json in `directory`. ignore: layers that are not quantized, by name or `re:`
    pattern. cache: keys and values are cached as FP8_CACHE."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme, QuantizationStatus

    weights, activations = (QuantizationArgs(**asdict(args)) if args else None for args in (scheme.weights, scheme.activations))
    group = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=activations, format=scheme.format)
    config = QuantizationConfig(config_groups={"group_0": group}, format=scheme.format, ignore=list(ignore),
                                quantization_status=QuantizationStatus.COMPRESSED,
                                kv_cache_scheme=QuantizationArgs(**asdict(FP8_CACHE)) if cache else None)
    ModelCompressor(quantization_config=config).update_config(str(directory))

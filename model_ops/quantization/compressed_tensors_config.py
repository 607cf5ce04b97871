"""Writes what a quantized directory's config.json says of its weights, through the compressed-tensors library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from model_ops.quantization.scheme import FP8_CACHE, Scheme

MIXED = "mixed-precision"
"""Format of a directory whose groups have formats of their own."""


def announce(groups: Mapping[Scheme, Sequence[str]], directory: Path, ignore: Sequence[str] = ("lm_head",),
             cache: bool = False) -> None:
    """Adds `quantization_config` to the config.json in `directory`. groups: each scheme with its layers, by name or class.
    ignore: layers that are not quantized, by name or `re:` pattern. cache: keys and values are cached as FP8_CACHE."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme, QuantizationStatus

    written = {}
    for number, (scheme, targets) in enumerate(groups.items()):
        weights, activations = (QuantizationArgs(**asdict(args)) if args else None
                                for args in (scheme.weights, scheme.activations))
        written[f"group_{number}"] = QuantizationScheme(targets=list(targets), weights=weights, input_activations=activations,
                                                        format=scheme.format)
    formats = {scheme.format for scheme in groups}
    config = QuantizationConfig(config_groups=written, format=formats.pop() if len(formats) == 1 else MIXED,
                                ignore=list(ignore), quantization_status=QuantizationStatus.COMPRESSED,
                                kv_cache_scheme=QuantizationArgs(**asdict(FP8_CACHE)) if cache else None)
    ModelCompressor(quantization_config=config).update_config(str(directory))

"""Finds a quantization scheme by name or by a directory's config.json, and writes that config with the compressed-tensors
library. Imports no torch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from model_ops.jobs import ModelError
from model_ops.quantization import schemes
from model_ops.quantization.scheme import FP8_CACHE, Scheme, read_alike

SCHEMES: dict[str, Scheme] = {scheme.name: scheme for scheme in vars(schemes).values() if isinstance(scheme, Scheme)}
"""Name in recipes -> scheme, in the order of messages and docs."""


@dataclass(frozen=True)
class Quantization:
    """How a directory's weights are quantized, and which of its Linear layers are."""

    groups: tuple[tuple[Scheme, tuple[str, ...]], ...]
    """Schemes with the layers that each is for."""
    ignore: tuple[str, ...]
    cache: bool = False
    """Whether keys and values are cached as float8 (`model_ops.quantization.quantized_model`)."""

    def scheme_of(self, layer: str) -> Scheme | None:
        """The scheme of a Linear layer, by its name; None if it is not quantized. Targets and exceptions are read as
        compressed-tensors does: `re:` begins a pattern for the start of a name, anything else is a whole name or the class
        `Linear`; a whole name comes before a pattern, and a pattern before the class."""
        if any(_closeness(layer, ignored) for ignored in self.ignore):
            return None
        closeness = [(max(map(partial(_closeness, layer), targets), default=0), scheme) for scheme, targets in self.groups]
        closest = max(closeness, key=lambda each: each[0], default=(0, None))
        return closest[1] if closest[0] else None

    def covers(self, layer: str) -> bool:
        """Whether a Linear layer is quantized, by its name."""
        return self.scheme_of(layer) is not None


def quantization_of(config: Mapping[str, Any]) -> Quantization | None:
    """The quantization that a config.json describes; None for float weights. Raises ModelError for an unknown scheme."""
    written = config.get("quantization_config")
    if written is None:
        return None
    schemes = _schemes_of(written)
    if not schemes:
        known = ", ".join(scheme.title for scheme in SCHEMES.values())
        raise ModelError(
            f"quantization_config describes {_summary(written)}, which is not read here; known in "
            f"compressed-tensors layout: {known}"
        )
    groups = tuple(
        (scheme, _patterns(group.get("targets") or ["Linear"], "targets"))
        for scheme, group in zip(schemes, written["config_groups"].values(), strict=True)
    )
    return Quantization(groups, _patterns(written.get("ignore") or [], "ignore"), written.get("kv_cache_scheme") is not None)


def _schemes_of(written: Any) -> list[Scheme]:
    """The scheme of each group; none if one is unknown, or if something else is in the way."""
    if not read_alike(written):
        return []
    schemes = []
    for group in written["config_groups"].values():
        scheme = next((each for each in SCHEMES.values() if each.describes(group, written.get("format"))), None)
        if scheme is None:
            return []
        schemes.append(scheme)
    return schemes


def _patterns(listed: Any, key: str) -> tuple[str, ...]:
    """A list of names and `re:` patterns. Raises ModelError for anything else, or an invalid pattern."""
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise ModelError(f"quantization_config has {key} = {listed!r}, not a list of names and `re:` patterns")
    for each in listed:
        if each.startswith("re:"):
            try:
                re.compile(each.removeprefix("re:"))
            except re.error as error:
                raise ModelError(f"quantization_config has the invalid pattern {each!r} in {key}: {error}") from error
    return tuple(listed)


def _closeness(layer: str, pattern: str) -> int:
    """How closely a pattern names a layer: 3 by its whole name, 2 by a pattern, 1 by its class; 0: not at all."""
    if pattern.startswith("re:"):
        return 2 if re.match(pattern.removeprefix("re:"), layer) is not None else 0
    return 3 if pattern == layer else int(pattern == "Linear")


def _summary(config: Any) -> str:
    if not isinstance(config, Mapping):
        return "nothing that can be read"
    return " ".join(str(config[name]) for name in ("quant_method", "format") if config.get(name)) or "no quant_method"


MIXED = "mixed-precision"
"""Format of a directory whose groups have formats of their own."""


def announce(
    groups: Mapping[Scheme, Sequence[str]], directory: Path, ignore: Sequence[str] = ("lm_head",), cache: bool = False
) -> None:
    """Adds `quantization_config` to the config.json in `directory`. groups: each scheme with its layers, by name or class.
    ignore: layers that are not quantized, by name or `re:` pattern. cache: keys and values are cached as FP8_CACHE."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme, QuantizationStatus

    written = {}
    for number, (scheme, targets) in enumerate(groups.items()):
        weights, activations = (
            QuantizationArgs(**asdict(args)) if args else None for args in (scheme.weights, scheme.activations)
        )
        written[f"group_{number}"] = QuantizationScheme(
            targets=list(targets), weights=weights, input_activations=activations, format=scheme.format
        )
    formats = {scheme.format for scheme in groups}
    config = QuantizationConfig(
        config_groups=written,
        format=formats.pop() if len(formats) == 1 else MIXED,
        ignore=list(ignore),
        quantization_status=QuantizationStatus.COMPRESSED,
        kv_cache_scheme=QuantizationArgs(**asdict(FP8_CACHE)) if cache else None,
    )
    ModelCompressor(quantization_config=config).update_config(str(directory))

"""Finds a quantization scheme by name or by a directory's config.json. Importing this module imports no torch.

    quantization = quantization_of(config)               # None for float weights
    quantization.scheme.name, quantization.covers("model.layers.0.mlp.up_proj")

`schemes/__init__.py` lists the schemes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_ops.errors import ModelError
from model_ops.quantization import schemes
from model_ops.quantization.scheme import Scheme

SCHEMES: dict[str, Scheme] = {found.name: found for found in vars(schemes).values() if isinstance(found, Scheme)}
"""Name in recipes -> scheme, in the order of messages and docs."""


@dataclass(frozen=True)
class Quantization:
    """How a directory's weights are quantized, and which of its Linear layers are."""

    scheme: Scheme
    targets: tuple[str, ...]
    ignore: tuple[str, ...]
    cache: bool = False
    """Whether keys and values are cached as float8 (`model_ops.quantization.kv_cache`)."""

    def covers(self, layer: str) -> bool:
        """Whether a Linear layer is quantized, by its name. Targets and exceptions are read as compressed-tensors does:
        `re:` begins a pattern for the start of a name, anything else is a whole name or the class `Linear`."""
        return any(_matches(layer, target) for target in self.targets) and not any(
            _matches(layer, ignored) for ignored in self.ignore)


def quantization_of(config: Mapping[str, Any]) -> Quantization | None:
    """The quantization that a config.json describes; None for float weights. Raises ModelError for an unknown scheme."""
    found = config.get("quantization_config")
    if found is None:
        return None
    scheme = next((scheme for scheme in SCHEMES.values() if scheme.recognises(found)), None)
    if scheme is None:
        known = ", ".join(scheme.title for scheme in SCHEMES.values())
        raise ModelError(f"quantization_config describes {_summary(found)}, which is not read here; known in "
                         f"compressed-tensors layout: {known}")
    (group,) = found["config_groups"].values()
    return Quantization(scheme, _patterns(group.get("targets") or ["Linear"], "targets"),
                        _patterns(found.get("ignore") or [], "ignore"), found.get("kv_cache_scheme") is not None)


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


def _matches(layer: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), layer) is not None
    return pattern in (layer, "Linear")


def _summary(config: Any) -> str:
    if not isinstance(config, Mapping):
        return "nothing that can be read"
    return " ".join(str(config[name]) for name in ("quant_method", "format") if config.get(name)) or "no quant_method"

"""The quantization schemes, in the order of messages and docs, found by name or by a directory's config.json. To add one, add
its layer to the room and its `Scheme` here. Imports no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_ops.files import Layout
from model_ops.jobs import ModelError
from model_ops.quantization.scheme import FP8_CACHE, Precision, Scheme, read_alike

if TYPE_CHECKING:
    from model_ops.quantization.quantized_linear import QuantizedLinear


BLOCK = 128
"""Rows and columns of a weight that share a scale of fp8_block."""


def _layer(name: str) -> Callable[[], type[QuantizedLinear]]:
    """Loads a layer's class, which imports torch."""

    def load() -> type[QuantizedLinear]:
        from model_ops.quantization.fp8_linear import Fp8BlockLinear, Fp8Linear
        from model_ops.quantization.int4_linear import Int4Linear, Int4Linear32, Int4Linear64
        from model_ops.quantization.int8_linear import ChannelInt8Linear, Int8Linear, PackedInt8Linear

        layers: tuple[type[QuantizedLinear], ...] = (
            *(Fp8BlockLinear, Fp8Linear, Int4Linear, Int4Linear32, Int4Linear64),
            *(Int8Linear, ChannelInt8Linear, PackedInt8Linear),
        )
        return next(layer for layer in layers if layer.__name__ == name)

    return load


def _by_channel(dtype: str) -> Callable[[int, int], Layout]:
    """One byte for each weight and a scale for each output channel."""
    return lambda outputs, inputs: {"weight": (dtype, (outputs, inputs)), "weight_scale": ("F32", (outputs, 1))}


def _refuse_rest(inputs: int, size: int, scheme: str) -> None:
    if inputs % size:
        raise ModelError(f"a layer has {inputs} inputs, no multiple of the {size} that share a scale: choose scheme {scheme}")


def _in_blocks(outputs: int, inputs: int) -> Layout:
    _refuse_rest(inputs, BLOCK, "fp8")
    return {"weight": ("F8_E4M3", (outputs, inputs)), "weight_scale": ("F32", (math.ceil(outputs / BLOCK), inputs // BLOCK))}


def _packed(bits: int, group_size: int | None) -> Callable[[int, int], Layout]:
    """Integers in words of 32 bits and a scale for each group of inputs; None: for each output channel."""

    def stored(outputs: int, inputs: int) -> Layout:
        if group_size:
            smaller = next((f"w4a16_g{size}" for size in (64, 32) if inputs % size == 0), "w8a8")
            _refuse_rest(inputs, group_size, smaller if bits == 4 else "w8a16_channel")
        return {
            "weight_packed": ("I32", (outputs, math.ceil(inputs * bits / 32))),
            "weight_scale": ("BF16", (outputs, inputs // group_size if group_size else 1)),
            "weight_shape": ("I64", (2,)),
        }

    return stored


FP8 = Scheme(
    "fp8",
    title="FP8 with dynamic activations",
    format="float-quantized",
    weights=Precision(8, "float", "channel"),
    activations=Precision(8, "float", "token", dynamic=True),
    stored=_by_channel("F8_E4M3"),
    load_layer=_layer("Fp8Linear"),
)
FP8_BLOCK = Scheme(
    "fp8_block",
    title="FP8 in blocks",
    format="float-quantized",
    weights=Precision(8, "float", "block", block_structure=(BLOCK, BLOCK)),
    activations=Precision(8, "float", "group", dynamic=True, group_size=BLOCK),
    stored=_in_blocks,
    load_layer=_layer("Fp8BlockLinear"),
    output_block=BLOCK,
)


def _in_groups(name: str, bits: int, group_size: int, layer: str) -> Scheme:
    return Scheme(
        name,
        title=f"int{bits} W{bits}A16 in groups of {group_size}",
        format="pack-quantized",
        weights=Precision(bits, "int", "group", group_size=group_size),
        activations=None,
        stored=_packed(bits, group_size),
        load_layer=_layer(layer),
        calibrated=bits == 4,
    )


W4A16 = _in_groups("w4a16", 4, 128, "Int4Linear")
W4A16_G64 = _in_groups("w4a16_g64", 4, 64, "Int4Linear64")
W4A16_G32 = _in_groups("w4a16_g32", 4, 32, "Int4Linear32")
W8A8 = Scheme(
    "w8a8",
    title="int8 W8A8",
    format="int-quantized",
    weights=Precision(8, "int", "channel"),
    activations=Precision(8, "int", "token", dynamic=True),
    stored=_by_channel("I8"),
    load_layer=_layer("Int8Linear"),
)
W8A16 = _in_groups("w8a16", 8, 128, "PackedInt8Linear")
W8A16_CHANNEL = Scheme(
    "w8a16_channel",
    title="int8 W8A16 by channel",
    format="pack-quantized",
    weights=Precision(8, "int", "channel"),
    activations=None,
    stored=_packed(8, None),
    load_layer=_layer("ChannelInt8Linear"),
)

SCHEMES: dict[str, Scheme] = {scheme.name: scheme for scheme in [*globals().values()] if isinstance(scheme, Scheme)}
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

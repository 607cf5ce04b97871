"""What a quantization scheme is: a name in recipes, the precision of weights and activations, the tensors it stores. Importing
this module imports no torch; `load_layer` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from model_ops.files import Layout

if TYPE_CHECKING:
    from model_ops.quantization.quantized_linear import QuantizedLinear


@dataclass(frozen=True)
class Precision:
    """How the numbers of one tensor are stored: the fields of compressed-tensors' QuantizationArgs that change results."""

    num_bits: int
    type: str
    strategy: str
    """Which values share a scale (tensor, channel, group, block, token)."""
    symmetric: bool = True
    dynamic: bool = False
    """Whether scales are computed as values arrive."""
    group_size: int | None = None
    block_structure: tuple[int, int] | None = None
    """Rows and columns of a block."""

    @classmethod
    def read(cls, args: Mapping[str, Any] | None) -> Precision | None:
        """From a quantization_config; keys that are left out have the library's own defaults."""
        if args is None:
            return None
        size = args.get("group_size")
        strategy = args.get("strategy") or ("tensor" if size is None else "group" if size > 0 else "channel")
        block = args.get("block_structure")
        return cls(
            args.get("num_bits", 8),
            str(args.get("type", "int")).lower(),
            str(strategy).lower(),
            args.get("symmetric", True),
            args.get("dynamic", False),
            size if strategy == "group" else None,
            tuple(block) if block else None,
        )


FP8_CACHE = Precision(8, "float", "tensor")
"""Keys and values as float8, each with one scale for a layer, fixed before."""


@dataclass(frozen=True)
class Scheme:
    """One way to quantize the Linear layers of a model's blocks."""

    name: str
    """Name in recipes (`quantize.scheme`)."""
    title: str
    """Name in messages."""
    format: str
    """How compressed-tensors stores the weights."""
    weights: Precision
    activations: Precision | None
    stored: Callable[[int, int], Layout]
    """(out_features, in_features) -> the tensors of one layer."""
    load_layer: Callable[[], type[QuantizedLinear]]
    """Imports the layer that encodes a weight and computes what a server computes."""
    calibrated: bool = False
    """Whether codes of weights are chosen from the layers' inputs (GPTQ)."""
    output_block: int = 1
    """Layers that servers join, all but the last, must have a multiple of this number of outputs."""

    def describes(self, group: Any, default_format: str | None = None) -> bool:
        """Whether a group of a quantization_config describes this scheme: same weights, activations and format.
        default_format: of groups that name none."""
        try:
            return (
                (group.get("format") or default_format) == self.format
                and Precision.read(group["weights"]) == self.weights
                and Precision.read(group.get("input_activations")) == self.activations
                and group.get("output_activations") is None
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return False

    def recognises(self, config: Any) -> bool:
        """Whether a quantization_config describes this scheme for all layers: one group, and nothing else that changes
        results."""
        if not read_alike(config):
            return False
        groups = list(config["config_groups"].values())
        return len(groups) == 1 and self.describes(groups[0], config.get("format"))


def read_alike(config: Any) -> bool:
    """Whether the groups of a quantization_config say all of it: no transforms, no sparsity, no other quantized KV cache than
    FP8_CACHE."""
    try:
        return (
            config.get("quant_method") == "compressed-tensors"
            and len(config["config_groups"].values()) > 0
            and Precision.read(config.get("kv_cache_scheme")) in (None, FP8_CACHE)
            and not (config.get("transform_config") or {}).get("config_groups")
            and (config.get("sparsity_config") or {}).get("format", "dense") == "dense"
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return False

"""What a quantization scheme is: a name in recipes, the precision of weights and activations, the tensors it stores.

    W8A8.recognises(config["quantization_config"])       # whether servers compute that directory by this scheme

Importing this module imports no torch; `load_layer` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from model_ops.tensor_files import Layout

if TYPE_CHECKING:
    from model_ops.quantization.quantized_linear import QuantizedLinear


@dataclass(frozen=True)
class Precision:
    """How the numbers of one tensor are stored: the fields of compressed-tensors' QuantizationArgs that change results.

    strategy: what shares a scale (tensor, channel, group, block, token). dynamic: scales are computed as values arrive.
    """

    num_bits: int
    type: str
    strategy: str
    symmetric: bool = True
    dynamic: bool | str = False
    group_size: int | None = None

    @classmethod
    def read(cls, args: Mapping[str, Any] | None) -> Precision | None:
        """From a quantization_config; keys that are left out have the library's own defaults."""
        if args is None:
            return None
        size = args.get("group_size")
        strategy = args.get("strategy") or ("tensor" if size is None else "group" if size > 0 else "channel")
        return cls(args.get("num_bits", 8), str(args.get("type", "int")).lower(), str(strategy).lower(),
                   args.get("symmetric", True), args.get("dynamic", False), size if strategy == "group" else None)


@dataclass(frozen=True)
class Scheme:
    """One way to quantize the Linear layers of a model's blocks.

    name: in recipes (`quantize.scheme`). title: for messages. format: how compressed-tensors stores the weights.
    stored: (out_features, in_features) -> the tensors of one layer. load_layer: imports the layer that encodes a weight and
    computes what a server computes. calibrated: whether the codes of weights are chosen by what layers read (GPTQ); the layer
    then has `encode_for`.
    """

    name: str
    title: str
    format: str
    weights: Precision
    activations: Precision | None
    stored: Callable[[int, int], Layout]
    load_layer: Callable[[], type[QuantizedLinear]]
    calibrated: bool = False

    def recognises(self, config: Any) -> bool:
        """Whether a quantization_config describes this scheme: one group of layers, same weights, activations and format,
        no transforms, no sparsity, no quantized KV cache."""
        try:
            (group,) = config["config_groups"].values()
            return (config.get("quant_method") == "compressed-tensors"
                    and (group.get("format") or config.get("format")) == self.format
                    and Precision.read(group["weights"]) == self.weights
                    and Precision.read(group.get("input_activations")) == self.activations
                    and group.get("output_activations") is None and config.get("kv_cache_scheme") is None
                    and not (config.get("transform_config") or {}).get("config_groups")
                    and (config.get("sparsity_config") or {}).get("format", "dense") == "dense")
        except (KeyError, TypeError, ValueError, AttributeError):
            return False

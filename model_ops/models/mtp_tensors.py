"""The multi-token-prediction layers that some checkpoints carry beside their body, by the names of their tensors.

A model whose body is known under another name is imported as that: MiMo-7B is a Qwen2 with `model.mtp_layers.*` beside it
(Xiaomi 2025, arXiv 2505.07608). The body becomes a plain Qwen2, which trains, quantizes and is served like any other and
needs nobody's code; the layers are set apart in `mtp/`, for a drafter to begin from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_ops.errors import ModelError
from model_ops.tensor_files import TensorFileError, TensorHeader, read_directory, write_stream

LAYER = "model.mtp_layers.0."
"""Where the names of the first layer's tensors begin."""

LAYERS = "model.mtp_layers."

BODIES = {"mimo": ("qwen2", "Qwen2ForCausalLM")}
"""model_type of a checkpoint with such layers -> model_type and architecture of its body."""

BODY_TYPES = tuple(kind for kind, _ in BODIES.values())
"""model_type of every target beside which such a layer can be served."""

NOT_OF_THE_BODY = ("auto_map", "num_nextn_predict_layers")
"""Fields of a config that speak of the layers, or of an author's code."""


def has_layers(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a checkpoint with such layers."""
    return config.get("model_type") in BODIES


def unquantized_layer(config: Mapping[str, Any]) -> str:
    """The entry of a quantized model's ignore list that names a multi-token-prediction layer beside it. vLLM builds that layer
    as one more of the target's own, by the target's quantization, and asks compressed-tensors by that name."""
    return rf"re:model\.layers\.{config.get('num_hidden_layers')}\..*"


def takes_layer_for_quantized(config: Mapping[str, Any]) -> bool:
    """Whether a server of a model with this config.json takes such a layer's float weights for quantized ones."""
    scheme = config.get("quantization_config")
    if scheme is None:
        return False
    ignored = scheme.get("ignore") if isinstance(scheme, Mapping) else None
    return not isinstance(ignored, list) or unquantized_layer(config) not in ignored


def set_apart(source: Path, output: Path) -> set[str]:
    """Writes the body of `source` into `output` and its layers into `output/mtp`, a tensor at a time; the names of the files
    of `source` that were rewritten so, and are not to be copied.

    Raises ModelError where a file is damaged.
    """
    try:
        tensors = read_directory(source)
    except TensorFileError as error:
        raise ModelError(str(error)) from error
    layers = {name: tensor for name, tensor in tensors.items() if name.startswith(LAYERS)}
    body = {name: tensor for name, tensor in tensors.items() if name not in layers}
    for shard in sorted({tensor.file.name for tensor in body.values()}):
        _write(output / shard, {name: tensor for name, tensor in body.items() if tensor.file.name == shard})
    if layers:
        _write(output / "mtp" / "model.safetensors", layers)
    index = source / "model.safetensors.index.json"
    if index.exists():
        whole = {"metadata": {"total_size": sum(tensor.end - tensor.start for tensor in body.values())},
                 "weight_map": {name: tensor.file.name for name, tensor in body.items()}}
        (output / index.name).write_text(json.dumps(whole, indent=2) + "\n")
    config = json.loads((source / "config.json").read_text())
    kind, architecture = BODIES[config["model_type"]]
    kept = {name: value for name, value in config.items() if name not in NOT_OF_THE_BODY}
    named = {**kept, "model_type": kind, "architectures": [architecture]}
    (output / "config.json").write_text(json.dumps(named, indent=2) + "\n")
    return {*(tensor.file.name for tensor in tensors.values()), index.name, "config.json"}


def _write(path: Path, tensors: Mapping[str, TensorHeader]) -> None:
    """Puts a file under its final name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}")
    write_stream(beside, {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()},
                 ((name, tensor.read()) for name, tensor in tensors.items()))
    beside.replace(path)

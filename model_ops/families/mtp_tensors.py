"""Splits the multi-token-prediction (MTP) layers of a checkpoint from its body, by the names of the tensors: MiMo-7B, a Qwen2
with `model.mtp_layers.*` (arXiv 2505.07608), is imported as a plain Qwen2, and its MTP layers go to `mtp/` for a drafter."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_ops.files import TensorFileError, TensorHeader, read_directory, renamed_when_complete, write_stream
from model_ops.jobs import ModelError

LAYER = "model.mtp_layers.0."
"""Prefix of the tensors of the first MTP layer."""

LAYERS = "model.mtp_layers."

BODIES = {"mimo": ("qwen2", "Qwen2ForCausalLM")}
"""model_type of a checkpoint with MTP layers -> model_type and architecture of its body."""

BODY_TYPES = tuple(kind for kind, _ in BODIES.values())
"""model_type of the targets that can be served with an MTP layer."""

NOT_OF_THE_BODY = ("auto_map", "num_nextn_predict_layers")
"""Fields of a config about MTP layers or about custom code; the body's config does not have them."""


def has_layers(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a checkpoint with MTP layers."""
    return config.get("model_type") in BODIES


def unquantized_layer(config: Mapping[str, Any]) -> str:
    """The entry of a quantized target's ignore list for its MTP layer. vLLM builds that layer as one more layer of the target,
    with the target's quantization, and asks compressed-tensors by that name."""
    return rf"re:model\.layers\.{config.get('num_hidden_layers')}\..*"


def takes_layer_for_quantized(config: Mapping[str, Any]) -> bool:
    """Whether a server of this target would read the float weights of an MTP layer as quantized ones."""
    scheme = config.get("quantization_config")
    if scheme is None:
        return False
    ignored = scheme.get("ignore") if isinstance(scheme, Mapping) else None
    return not isinstance(ignored, list) or unquantized_layer(config) not in ignored


def set_apart(source: Path, output: Path) -> set[str]:
    """Writes the body of `source` to `output` and its MTP layers to `output/mtp`, one tensor at a time. Returns the names of
    the rewritten files of `source`, which must not be copied as well. Raises ModelError if a file is damaged."""
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
        whole = {
            "metadata": {"total_size": sum(tensor.end - tensor.start for tensor in body.values())},
            "weight_map": {name: tensor.file.name for name, tensor in body.items()},
        }
        (output / index.name).write_text(json.dumps(whole, indent=2) + "\n")
    config = json.loads((source / "config.json").read_text())
    kind, architecture = BODIES[config["model_type"]]
    fields = {name: value for name, value in config.items() if name not in NOT_OF_THE_BODY}
    named = {**fields, "model_type": kind, "architectures": [architecture]}
    (output / "config.json").write_text(json.dumps(named, indent=2) + "\n")
    return {*(tensor.file.name for tensor in tensors.values()), index.name, "config.json"}


def _write(path: Path, tensors: Mapping[str, TensorHeader]) -> None:
    with renamed_when_complete(path) as temporary:
        write_stream(
            temporary,
            {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()},
            ((name, tensor.read()) for name, tensor in tensors.items()),
        )

"""Loads quantized directories as models whose quantized layers compute what a server computes.

    model = load_quantized(Path("models/quantized"))     # a Hugging Face model with a scheme's own Linear layers
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from model_ops.errors import ModelError
from model_ops.model_families import MODEL_TYPES, is_block_linear
from model_ops.quantization.quantized_linear import QuantizedLinear
from model_ops.quantization.registry import Quantization, quantization_of
from model_ops.tensor_files import TensorFileError, read_directory


def is_quantized(directory: Path) -> bool:
    """Whether a model directory's config announces quantized weights."""
    return "quantization_config" in json.loads((directory / "config.json").read_text())


def load_quantized(directory: Path, dtype: torch.dtype | None = None, attention: str = "sdpa") -> nn.Module:
    """A model with the scheme's layers in its blocks, for forward, hidden states and cached generation.

    dtype: of all tensors that are not quantized (default: the config's). Raises ModelError if the directory is not quantized
    by a known scheme, is not a model of a known family, or lacks a tensor.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    quantization = _quantization(directory)
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    if config.model_type not in MODEL_TYPES:
        raise ModelError(f"{directory} is a {config.model_type} model; quantized layers are known for "
                         f"{', '.join(MODEL_TYPES)}")
    dtype = dtype or getattr(config, "dtype", None) or torch.bfloat16
    del config.quantization_config  # transformers would load the layers its own way
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
        layers = _put_layers(model, quantization, dtype)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if quantization.covers("lm_head") and not tied:
        raise ModelError(f"{directory}: quantization_config does not leave out lm_head, and only layers of blocks are read "
                         "quantized: add lm_head to its ignore list, or quantize the model again")
    state = _read(directory, dtype, layers, tied)
    for name, tensor in model.state_dict().items():
        if name not in tied and (name not in state or state[name].shape != tensor.shape):
            found = "is missing" if name not in state else f"is {list(state[name].shape)}"
            raise ModelError(f"{directory}: {name} {found}, the config asks for {list(tensor.shape)}: "
                             "quantize the model again")
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    _materialize_rotary(model, config)
    return model.eval().requires_grad_(False)


def _quantization(directory: Path) -> Quantization:
    try:
        found = quantization_of(json.loads((directory / "config.json").read_text()))
    except ModelError as error:
        raise ModelError(f"{directory}: {error}") from error
    if found is None:
        raise ModelError(f"{directory} is not quantized: its config.json has no quantization_config")
    return found


def _put_layers(model: nn.Module, quantization: Quantization, dtype: torch.dtype) -> dict[str, QuantizedLinear]:
    """Replaces the Linear layers that are quantized; the new ones by name."""
    kind, layers = quantization.scheme.load_layer(), {}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and is_block_linear(f"{name}.weight") and quantization.covers(name):
            stored = quantization.scheme.stored(module.out_features, module.in_features)
            layers[name] = kind(module.in_features, module.out_features, module.bias is not None, dtype, stored)
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layers[name])
    return layers


def _read(directory: Path, dtype: torch.dtype, layers: dict[str, QuantizedLinear], skipped: set[str]) -> dict[str, Tensor]:
    """The directory's tensors: those of a quantized layer in the dtype that its scheme stores, all others in `dtype`."""
    from safetensors import safe_open

    try:
        files = sorted({header.file for header in read_directory(directory).values()})
    except TensorFileError as error:
        raise ModelError(str(error)) from error
    state = {}
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                if name in skipped:
                    continue
                layer, _, part = name.rpartition(".")
                tensor, wanted = tensors.get_tensor(name), dtype
                if layer in layers and part in layers[layer].parts:
                    wanted = getattr(layers[layer], part).dtype
                if tensor.is_floating_point() != wanted.is_floating_point:
                    raise ModelError(f"{directory}: {name} is {tensor.dtype}, the config asks for {wanted}: quantize the model "
                                     "again")
                state[name] = tensor.to(wanted)
    return state


def _materialize_rotary(model: nn.Module, config) -> None:
    """Rotary frequencies are computed, not stored: build that module again off the meta device."""
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config=config)

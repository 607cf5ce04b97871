"""Reads and writes LoRA adapters in PEFT's format: adapter_config.json and adapter_model.safetensors.

    save_adapter(model, settings, directory, base="path or id of the base model")
    load_adapter(model, directory)             # onto a model that has no adapters yet

The `peft` library and servers load these files (vLLM: --enable-lora, and --max-lora-rank of at least the rank, one of 1, 8, 16,
32, 64, 128, 256, 320, 512). Only plain LoRA of one rank is read, without biases and saved modules, as this trainer writes it.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from model_ops.atomic_files import renamed_when_complete
from model_ops.errors import ModelError
from model_ops.models.adapter_base import CONFIG, WEIGHTS
from model_ops.models.lora import AdapterCounts, LoraLinear, adapted_layers, add_adapters
from model_ops.models.lora_parameters import ParameterAdapter, adaptable_parameters, adapted_parameters
from model_ops.models.lora_settings import LoraSettings

PREFIX = "base_model.model."
PARTS = ("lora_A", "lora_B")
WRAPPED = ".base_layer"
PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights with which peft leaves the base model's weights as they are (pissa, olora, corda change them)."""


def save_adapter(model: PreTrainedModel, settings: LoraSettings, directory: Path, base: str) -> None:
    """Writes the adapters of `model` in float32. adapter_config.json comes last, so that it marks a complete adapter."""
    layers, parameters = adapted_layers(model), adapted_parameters(model)
    tensors = {}
    for name, layer in {**layers, **_wrapped(parameters)}.items():
        for part, tensor in zip(PARTS, _matrices(layer), strict=True):
            tensors[f"{PREFIX}{name}.{part}.weight"] = tensor.detach().to("cpu", torch.float32).contiguous()
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "inference_mode": True,
        "r": settings.rank, "lora_alpha": settings.alpha,
        "lora_dropout": 0.0 if parameters else settings.dropout,  # peft refuses it with target_parameters; it is for training
        "use_rslora": settings.rslora, "use_dora": False, "bias": "none", "fan_in_fan_out": False,
        "init_lora_weights": True, "modules_to_save": None, "layers_to_transform": None, "layers_pattern": None,
        "rank_pattern": {}, "alpha_pattern": {}, "target_modules": _targets(model, list(layers)),
        **({"target_parameters": sorted(parameters)} if parameters else {}),
    }
    with renamed_when_complete(directory / WEIGHTS, flush=True) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    with renamed_when_complete(directory / CONFIG, flush=True) as temporary:
        temporary.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load_adapter(model: PreTrainedModel, directory: Path, kind: type[LoraLinear] = LoraLinear) -> AdapterCounts:
    """Adds the adapters in `directory` to `model`. Raises ModelError if they are missing, damaged, not plain LoRA, or for
    another model."""
    for needed in (CONFIG, WEIGHTS):
        if not (directory / needed).exists():
            raise ModelError(f"{directory} holds no adapter, {needed} is missing: give the directory of an adapter")
    try:
        config = json.loads((directory / CONFIG).read_text())
        tensors = load_file(directory / WEIGHTS)
    except (ValueError, OSError, SafetensorError) as error:
        raise ModelError(f"the adapter in {directory} is truncated or damaged, copy it again: {str(error).splitlines()[0]}"
                         ) from error
    odd = [name for name, plain in (("peft_type", "LORA"), ("bias", "none"), ("use_dora", False), ("modules_to_save", None),
                                    ("rank_pattern", {}), ("alpha_pattern", {})) if config.get(name, plain) != plain]
    odd += ["alora_invocation_tokens"] if config.get("alora_invocation_tokens") else []
    odd += ["init_lora_weights"] if config.get("init_lora_weights", True) not in PLAIN_STARTS else []
    if odd:
        raise ModelError(f"the adapter in {directory} has {odd[0]} = {config[odd[0]]!r}; only plain LoRA is read")
    names = [key.removeprefix(PREFIX).removesuffix(".lora_A.weight") for key in tensors if key.endswith(".lora_A.weight")]
    whole = {name.rpartition(".")[0] for name in adaptable_parameters(model)}
    names = [name for name in names if name.replace(WRAPPED, "") not in whole] + (config.get("target_parameters") or [])
    try:
        settings = LoraSettings(rank=config["r"], alpha=config["lora_alpha"], dropout=config.get("lora_dropout", 0.0),
                                rslora=config.get("use_rslora", False), targets=names)
    except (KeyError, ValidationError) as error:
        raise ModelError(f"{directory / CONFIG} has no valid r, lora_alpha or target_modules; write them as PEFT does"
                         ) from error
    counts = add_adapters(model, settings, kind=kind)
    with torch.no_grad():
        for name, layer in {**adapted_layers(model), **_wrapped(adapted_parameters(model))}.items():
            for part, matrix in zip(PARTS, _matrices(layer), strict=True):
                found = tensors.pop(f"{PREFIX}{name}.{part}.weight", None)
                if found is None or found.shape != matrix.shape:
                    raise ModelError(f"the adapter in {directory} has no {part} of shape {list(matrix.shape)} for {name}; "
                                     "give the model that it was trained on, or copy it again")
                getattr(layer, part).copy_(_parameter(found, part, getattr(layer, part)))
    if tensors:
        raise ModelError(f"the adapter in {directory} holds {sorted(tensors)[0]}, which the model does not have; give the "
                         "model that it was trained on")
    return counts


def _wrapped(adapters: dict[str, ParameterAdapter]) -> dict[str, ParameterAdapter]:
    """The adapters of weights by peft's names. peft wraps a module once for each of its weights: the last weight's adapter
    belongs to the outermost wrapper, the one before to its base_layer."""
    of_module: dict[str, list[ParameterAdapter]] = {}
    for name, adapter in adapters.items():
        of_module.setdefault(name.rpartition(".")[0], []).append(adapter)
    return {module + WRAPPED * depth: adapter
            for module, own in of_module.items() for depth, adapter in enumerate(reversed(own))}


def _matrices(layer: LoraLinear | ParameterAdapter) -> tuple[Tensor, Tensor]:
    """A and B as peft stores them: of experts [experts rank, in] and [out, rank experts]."""
    if layer.lora_A.ndim == 2:
        return layer.lora_A, layer.lora_B
    return layer.lora_A.flatten(0, 1), layer.lora_B.permute(1, 2, 0).flatten(1)


def _parameter(stored: Tensor, part: str, like: Tensor) -> Tensor:
    """The inverse of `_matrices` for one part."""
    if like.ndim == 2:
        return stored
    experts, outer, rank = like.shape
    return stored.view(like.shape) if part == "lora_A" else stored.view(outer, rank, experts).permute(2, 0, 1)


def _targets(model: PreTrainedModel, names: list[str]) -> list[str]:
    """PEFT's target_modules: last parts of the names if they match exactly these layers, otherwise full names."""
    lasts = {name.rpartition(".")[2] for name in names}
    matched = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in lasts}
    return sorted(lasts) if matched == set(names) else sorted(names)

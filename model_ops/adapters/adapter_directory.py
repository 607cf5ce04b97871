"""Writes LoRA adapters in PEFT's format (one rank, no biases), which `peft` and servers load (vLLM: --enable-lora,
--max-lora-rank of at least the rank). A head that was trained whole, of a reward model, is a saved module."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from model_ops.adapters.adapter_base import CONFIG, WEIGHTS
from model_ops.adapters.lora import LoraLinear, ParameterAdapter, adapted_layers, adapted_parameters
from model_ops.adapters.lora_settings import LoraSettings
from model_ops.files import renamed_when_complete

PREFIX = "base_model.model."
PARTS = ("lora_A", "lora_B")
WRAPPED = ".base_layer"


def save_adapter(model: PreTrainedModel, settings: LoraSettings, directory: Path, base: str) -> None:
    """Writes the adapters of `model` in float32. adapter_config.json comes last, so that it marks a complete adapter."""
    layers, parameters = adapted_layers(model), adapted_parameters(model)
    tensors = {}
    adapters: dict[str, LoraLinear | ParameterAdapter] = {**layers, **_wrapped(parameters)}
    for name, layer in adapters.items():
        for part, tensor in zip(PARTS, _matrices(layer), strict=True):
            tensors[f"{PREFIX}{name}.{part}.weight"] = tensor.detach().to("cpu", torch.float32).contiguous()
    heads = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad and ".lora_" not in name
    }
    tensors |= {f"{PREFIX}{name}": head.detach().to("cpu", torch.float32).contiguous() for name, head in heads.items()}
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if heads else "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": 0.0 if parameters else settings.dropout,  # peft refuses it with target_parameters; it is for training
        "use_rslora": settings.rslora,
        "use_dora": False,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": sorted(name.rpartition(".")[0] for name in heads) or None,
        "layers_to_transform": None,
        "layers_pattern": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "target_modules": _targets(model, list(layers)),
        **({"target_parameters": sorted(parameters)} if parameters else {}),
    }
    with renamed_when_complete(directory / WEIGHTS, flush=True) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    with renamed_when_complete(directory / CONFIG, flush=True) as temporary:
        temporary.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _wrapped(adapters: dict[str, ParameterAdapter]) -> dict[str, ParameterAdapter]:
    """The adapters of weights by peft's names. peft wraps a module once for each of its weights: the last weight's adapter
    belongs to the outermost wrapper, the one before to its base_layer."""
    of_module: dict[str, list[ParameterAdapter]] = {}
    for name, adapter in adapters.items():
        of_module.setdefault(name.rpartition(".")[0], []).append(adapter)
    return {
        module + WRAPPED * depth: adapter for module, own in of_module.items() for depth, adapter in enumerate(reversed(own))
    }


def _matrices(layer: LoraLinear | ParameterAdapter) -> tuple[Tensor, Tensor]:
    """A and B as peft stores them: of experts [experts rank, in] and [out, rank experts]."""
    if layer.lora_A.ndim == 2:
        return layer.lora_A, layer.lora_B
    return layer.lora_A.flatten(0, 1), layer.lora_B.permute(1, 2, 0).flatten(1)


def _targets(model: PreTrainedModel, names: list[str]) -> list[str]:
    """PEFT's target_modules: last parts of the names if they match exactly these layers, otherwise full names."""
    lasts = {name.rpartition(".")[2] for name in names}
    matched = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in lasts}
    return sorted(lasts) if matched == set(names) else sorted(names)

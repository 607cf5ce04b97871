"""Reads an adapter that the trainer wrote: what was saved is what was trained."""

import json

import torch
from safetensors.torch import load_file

from model_ops.adapters.adapter_directory import PARTS, PREFIX, WRAPPED, _matrices, _wrapped
from model_ops.adapters.lora import LoraLinear, adaptable_parameters, adapted_layers, adapted_parameters, add_adapters
from model_ops.adapters.lora_settings import LoraSettings


def load_adapter(model, directory, kind=LoraLinear):
    """Adds the adapters in `directory` to a model that has none."""
    config = json.loads((directory / "adapter_config.json").read_text())
    tensors = load_file(directory / "adapter_model.safetensors")
    names = [key.removeprefix(PREFIX).removesuffix(".lora_A.weight") for key in tensors if key.endswith(".lora_A.weight")]
    whole = {name.rpartition(".")[0] for name in adaptable_parameters(model)}
    names = [name for name in names if name.replace(WRAPPED, "") not in whole] + (config.get("target_parameters") or [])
    add_adapters(
        model,
        LoraSettings(
            rank=config["r"],
            alpha=config["lora_alpha"],
            dropout=config["lora_dropout"],
            rslora=config["use_rslora"],
            targets=names,
        ),
        kind=kind,
    )
    with torch.no_grad():
        for name, layer in {**adapted_layers(model), **_wrapped(adapted_parameters(model))}.items():
            for part, matrix in zip(PARTS, _matrices(layer), strict=True):
                found = tensors.pop(f"{PREFIX}{name}.{part}.weight")
                assert found.shape == matrix.shape, name
                getattr(layer, part).copy_(_parameter(found, part, getattr(layer, part)))
    assert not tensors


def _parameter(stored, part, like):
    """The inverse of `_matrices` for one part."""
    if like.ndim == 2:
        return stored
    experts, outer, rank = like.shape
    return stored.view(like.shape) if part == "lora_A" else stored.view(outer, rank, experts).permute(2, 0, 1)

"""Initialises a shallower student from evenly spaced layers of its teacher.

    student = make_student(teacher, evenly_spaced(teacher.config.num_hidden_layers, 14))
"""

from __future__ import annotations

import copy
from contextlib import nullcontext

import torch
from torch import nn
from transformers import PreTrainedModel

from model_ops.errors import ModelError


def evenly_spaced(teacher_layers: int, count: int) -> list[int]:
    """Indices of `count` layers, evenly spaced with the first and the last; the last layer for count 1."""
    if count == 1:
        return [teacher_layers - 1]
    return [round(i * (teacher_layers - 1) / (count - 1)) for i in range(count)]


def make_student(teacher: PreTrainedModel, layers: list[int]) -> PreTrainedModel:
    """A copy of the teacher with only `layers`, also in per-layer config entries; all weights are trainable. The student of a
    teacher on the meta device has no values either.

    Raises ModelError if the teacher has no list of layers."""
    config = copy.deepcopy(teacher.config)
    depth = config.num_hidden_layers
    for name, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == depth:
            setattr(config, name, [value[layer] for layer in layers])
    config.num_hidden_layers = len(layers)
    if getattr(config, "max_window_layers", None) is not None:
        config.max_window_layers = min(config.max_window_layers, len(layers))
    parameter = next(teacher.parameters())
    with torch.device("meta") if parameter.is_meta else nullcontext():
        student = type(teacher)(config)
    prefix = next((name for name, module in teacher.named_modules()
                   if isinstance(module, nn.ModuleList) and len(module) == depth), None)
    if prefix is None:
        raise ModelError(f"teacher {type(teacher).__name__} has no list of its {depth} layers; choose another base model")
    weights = {}
    for name, value in teacher.state_dict().items():
        if not name.startswith(f"{prefix}."):
            weights[name] = value
            continue
        index, rest = name.removeprefix(f"{prefix}.").split(".", 1)
        if int(index) in layers:
            weights[f"{prefix}.{layers.index(int(index))}.{rest}"] = value
    if not parameter.is_meta:
        student.load_state_dict(weights, strict=True)
    student.set_attn_implementation("packed")
    student.generation_config = copy.deepcopy(teacher.generation_config)
    return student.to(parameter.device, parameter.dtype)

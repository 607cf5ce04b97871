"""Initialises a shallower student from layers of its teacher.

student = make_student(teacher, evenly_spaced(teacher.config.num_hidden_layers, 14))
layers_fit(teacher, [1, 2, 5])     # whether a model of these layers has their shapes: some families fix which are dense
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from model_ops.families import layer_list
from model_ops.models import isolate_documents, use_grouped_experts


def evenly_spaced(teacher_layers: int, count: int) -> list[int]:
    """Indices of `count` layers, evenly spaced with the first and the last; the last layer for count 1."""
    if count == 1:
        return [teacher_layers - 1]
    return [round(i * (teacher_layers - 1) / (count - 1)) for i in range(count)]


def layers_fit(teacher: PreTrainedModel, layers: list[int]) -> bool:
    """Whether layer i of a model of the student's config has the shapes of the teacher's layer layers[i]."""
    wanted = [_shapes(layer) for layer in layer_list(teacher)[1]]
    if all(shapes == wanted[0] for shapes in wanted):
        return True
    with torch.device("meta"):
        student = type(teacher)(student_config(teacher.config, layers))
    return [_shapes(layer) for layer in layer_list(student)[1]] == [wanted[layer] for layer in layers]


def student_config(teacher: PreTrainedConfig, layers: list[int]) -> PreTrainedConfig:
    """The teacher's config with only these layers, also in entries that are lists by layer."""
    config, depth = copy.deepcopy(teacher), teacher.num_hidden_layers
    for name, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == depth:
            setattr(config, name, [value[layer] for layer in layers])
    config.num_hidden_layers = len(layers)
    if getattr(config, "max_window_layers", None) is not None:
        config.max_window_layers = min(config.max_window_layers, len(layers))
    return config


def make_student(teacher: PreTrainedModel, layers: list[int]) -> PreTrainedModel:
    """A copy of the teacher with only `layers`, which keeps packed documents apart; all weights are trainable. The student of a
    teacher on the meta device has no values either.

    Raises ModelError if the teacher has no list of layers."""
    prefix, _ = layer_list(teacher)
    parameter = next(teacher.parameters())
    with parameter.device:  # random values are drawn where they are fastest; those of a teacher on meta have no storage
        student = type(teacher)(student_config(teacher.config, layers))
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
    use_grouped_experts(student)
    if not parameter.is_meta:
        isolate_documents(student, Path(teacher.config.model_type))
    student.generation_config = copy.deepcopy(teacher.generation_config)
    return student.to(parameter.device, parameter.dtype)


def _shapes(layer: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in layer.state_dict().items()}

"""Which layers of a model matter least for given documents, and a shallower student of the others. Greedy: in each round the
layer is removed without which the held-out loss is lowest (SLEB, arXiv 2402.09025). Of two layers that do the same, either can
go, but not both, which a single ranking (ShortGPT, arXiv 2403.03853) cannot see."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from model_ops.documents import MICRO_BATCH_TOKENS, Document, to_batches
from model_ops.families import layer_list
from model_ops.jobs import ModelError
from model_ops.losses import token_nll
from model_ops.machine import Precision, products_in
from model_ops.models import Bypass, isolate_documents, use_grouped_experts


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
    teacher on the meta device has no values either. Raises ModelError if the teacher has no list of layers."""
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


@dataclass(frozen=True)
class LayerRemoval:
    """A removed layer, and the held-out loss (nats per target token) without it and those before it."""

    layer: int
    loss: float


@dataclass(frozen=True)
class LayerSearch:
    """Result of the search for layers to remove."""

    loss: float
    """Loss of the whole model."""
    removed: list[LayerRemoval]
    """Removed layers, in order."""
    remaining: list[int]
    """Indices of the remaining layers, ascending."""


@torch.no_grad()
def least_important(
    model: PreTrainedModel,
    documents: Sequence[Document],
    remove: int,
    precision: Precision = "float32",
    batch_tokens: int = MICRO_BATCH_TOKENS,
    after_layer: Callable[[int, int], None] | None = None,
) -> LayerSearch:
    """Removes `remove` layers greedily. after_layer(done, total): called after each measured removal. The first and the last
    layer take part like all others. A layer stays where the rest would no longer fit the family's layout (DeepSeek-V3's first
    layers are dense). Raises ValueError for more layers than the model has, or no document with a target, ModelError if no
    layer can go."""
    _, layers = layer_list(model)
    if not 0 <= remove < len(layers):
        raise ValueError(f"cannot remove {remove} of {len(layers)} layers")
    device, was_training = next(model.parameters()).device, model.training
    batches = [batch.to(device) for batch in to_batches(documents, batch_tokens)]
    model.eval()
    originals, left = list(layers), list(range(len(layers)))
    removed: list[LayerRemoval] = []
    total, done = sum(len(layers) - gone for gone in range(remove)), 0

    def may_go(layer: int) -> bool:
        return layers_fit(model, [other for other in left if other != layer])

    try:
        whole = _loss(model, batches, precision)
        for _ in range(remove):
            losses = []
            candidates = [layer for layer in left if may_go(layer)]
            if not candidates:
                raise ModelError(
                    f"{type(model).__name__} cannot lose another layer after {len(removed)}, because its family "
                    "fixes the places of layers of different shapes: keep more layers, or choose_layers: even"
                )
            for layer in candidates:
                layers[layer] = Bypass(originals[layer])
                losses.append((_loss(model, batches, precision), layer))
                layers[layer] = originals[layer]
                done += 1
                if after_layer is not None:
                    after_layer(done, total)
            loss, layer = min(losses)
            layers[layer] = Bypass(originals[layer])
            left.remove(layer)
            removed.append(LayerRemoval(layer, loss))
    finally:
        for layer, module in enumerate(originals):
            layers[layer] = module
        model.train(was_training)
    return LayerSearch(whole, removed, left)


def _loss(model: PreTrainedModel, batches: Sequence, precision: Precision) -> float:
    nll_sum, tokens = 0.0, 0
    for batch in batches:
        with products_in(precision, batch.labels.device):
            losses, _ = token_nll(model, batch)
        nll_sum += float(losses.double().sum())
        tokens += losses.numel()
    if not tokens:
        raise ValueError("no document holds a target")
    return nll_sum / tokens

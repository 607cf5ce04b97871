"""The matrices of a model's blocks that are quantized, by name in a checkpoint and by module, and which of them servers join:
every Linear layer, and every expert that checkpoints store as matrices of its own. Routers stay float; so do experts stored as
one weight (gpt-oss, Granite), head, embeddings, norms and convolutions."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from model_ops.families import ROUTERS
from model_ops.jobs import ModelError

PARTS = ("gate", "up", "down")
"""Layers of an expert, in the order in which `BlockLayers.experts` names them."""


EACH = ".each."
"""Part of an expert layer's name between the mixture's name and the expert's number."""


class Expert(nn.Module):
    """A gated MLP."""

    def __init__(self, gate: nn.Module, up: nn.Module, down: nn.Module):
        super().__init__()
        self.gate, self.up, self.down = gate, up, down


class SeparateExperts(nn.Module):
    """A mixture's experts; the forward's signature is that of transformers' fused experts. act: the activation of the fused
    experts. watch: called with the hidden states and the experts of each token before they are computed."""

    def __init__(self, experts: list[Expert], act: nn.Module):
        super().__init__()
        self.each = nn.ModuleList(experts)
        self.act = act
        self.watch: Callable[[Tensor, Tensor], None] | None = None

    def forward(
        self,
        hidden_states: Float[Tensor, "tokens hidden"],
        top_k_index: Int[Tensor, "tokens top_k"],
        top_k_weights: Float[Tensor, "tokens top_k"],
    ) -> Float[Tensor, "tokens hidden"]:
        if self.watch is not None:
            self.watch(hidden_states, top_k_index)
        tokens, top_k = top_k_index.shape
        expert, order = top_k_index.reshape(-1).sort(stable=True)
        numbers = torch.arange(len(self.each), device=expert.device)
        ends = torch.searchsorted(expert, numbers, right=True).tolist()  # the layer's only transfer to the host
        rows = hidden_states[order // top_k]
        outputs = torch.cat(
            [
                self.each[number].down(self.inner(number, rows[start:end]))
                for number, (start, end) in enumerate(itertools.pairwise([0, *ends]))
                if start < end
            ]
        )
        outputs = outputs * top_k_weights.reshape(-1)[order, None]
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return outputs[back].view(tokens, top_k, -1).sum(1).to(hidden_states.dtype)

    def inner(self, number: int, rows: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows width"]:
        """Input of an expert's down projection."""
        expert = self.each[number]
        return self.act(expert.gate(rows)) * expert.up(rows)


@contextmanager
def unfuse(model: nn.Module, names: Iterable[str]) -> Iterator[dict[str, SeparateExperts]]:
    """Puts separate experts into the place of modules with fused ones, by name, and the fused ones back at the end. Weights are
    shared: what is written into one form is in the other."""
    fused = {name: model.get_submodule(name) for name in names}
    separate = {name: _separate(module) for name, module in fused.items()}
    try:
        for name, module in separate.items():
            model.set_submodule(name, module)
        yield separate
    finally:
        for name, module in fused.items():
            model.set_submodule(name, module)


def _separate(fused: nn.Module) -> SeparateExperts:
    width = fused.down_proj.shape[2]
    return SeparateExperts(
        [
            Expert(_linear(both[:width]), _linear(both[width:]), _linear(down))
            for both, down in zip(fused.gate_up_proj.detach(), fused.down_proj.detach(), strict=True)
        ],
        fused.act_fn,
    )


def _linear(weight: Float[Tensor, "out in"]) -> nn.Linear:
    """A layer with this weight, not a copy of it."""
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)$")
"""A layer of one expert in a checkpoint: module, number of the expert, name."""


@dataclass(frozen=True)
class BlockLayers:
    """Linear layers of a model's blocks, by their names in the checkpoint and in the model."""

    matrices: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Layer in the checkpoint -> (out_features, in_features), of all layers that are quantized."""
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Shape of every tensor in a float checkpoint."""
    linear: dict[str, str] = field(default_factory=dict)
    """Layer in the checkpoint -> module."""
    experts: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    """Module with fused experts -> its layers in the checkpoint, as [(gate, up, down)] by expert."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Other tensors whose names in checkpoint and model differ."""
    floats: list[str] = field(default_factory=list)
    """Matrices of blocks that stay float, by layer or module."""
    float_experts: list[str] = field(default_factory=list)
    """Modules with fused experts that stay float."""

    @property
    def modules(self) -> dict[str, str]:
        """Layer in the checkpoint -> module, of all layers that are quantized; those of experts are named as in
        `SeparateExperts`."""
        of_experts = {
            layer: f"{module}{EACH}{number}.{part}"
            for module, experts in self.experts.items()
            for number, layers in enumerate(experts)
            for part, layer in zip(PARTS, layers, strict=True)
        }
        return {**self.linear, **of_experts}


def model_of_config(config: Mapping[str, Any]) -> PreTrainedModel:
    """The model of a config.json on the meta device, without values. Raises ModelError if transformers cannot build it."""
    values = {name: value for name, value in config.items() if name not in ("quantization_config", "model_type")}
    try:
        parsed = AutoConfig.for_model(config["model_type"], **values)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(parsed, dtype=torch.bfloat16)
    except (ValueError, OSError, KeyError, TypeError, AttributeError, ImportError) as error:
        said = " ".join(str(error).split()).partition(" Should contain one of")[0]  # hundreds of names
        raise ModelError(f"transformers cannot build a {config.get('model_type')} from this config.json: {said}") from error


def block_layers(model: PreTrainedModel) -> BlockLayers:
    """The quantized layers of a model. Raises ModelError if names of its tensors cannot be followed into a checkpoint."""
    state = {name: value for name, value in model.state_dict().items() if name not in model.all_tied_weights_keys}
    layers = BlockLayers(tensors={name: tuple(value.shape) for name, value in _in_checkpoint(model, state).items()})
    linear = {
        name
        for name, module in model.named_modules()
        if ".layers." in name and isinstance(module, nn.Linear) and not set(ROUTERS) & set(name.split("."))
    }
    separate = _stored_one_by_one(model, state)
    for name, value in state.items():
        module, _, last = name.rpartition(".")
        if module in separate:
            continue  # followed below
        stored = [name] if name in layers.tensors else list(_in_checkpoint(model, {name: value}))
        if ".layers." not in name:
            _follow(layers, name, stored)
        elif module in linear and last == "weight":
            (layer,) = _follow(layers, name, stored)
            layer = layer.removesuffix(".weight")
            layers.linear[layer] = module
            layers.matrices[layer] = (value.shape[0], value.shape[1])
        else:
            (tensor,) = _follow(layers, name, stored)
            if value.ndim > 1 and not last.endswith("bias"):
                layers.floats.append(
                    tensor.removesuffix(".weight") if tensor.endswith(".weight") else tensor.rpartition(".")[0]
                )
            if value.ndim == 3 and module.endswith("experts") and module not in layers.float_experts:
                layers.float_experts.append(module)
    for layer in layers.tensors:
        if match := EXPERT.match(layer.removesuffix(".weight")):
            outputs, inputs = layers.tensors[layer]
            layers.matrices[match.group()] = outputs, inputs
    for module in separate:
        layers.experts[module] = _experts(model, module, state)
    layers.floats[:] = sorted(set(layers.floats))
    return layers


def _stored_one_by_one(model: PreTrainedModel, state: dict[str, Tensor]) -> list[str]:
    """Modules with fused experts that checkpoints store as matrices of each expert."""
    fused: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        if value.ndim == 3 and name.rpartition(".")[0].endswith("experts"):
            fused.setdefault(name.rpartition(".")[0], {})[name] = value
    return [
        module
        for module, own in fused.items()
        if any(EXPERT.match(name.removesuffix(".weight")) for name in _in_checkpoint(model, own))
    ]


def _follow(layers: BlockLayers, name: str, stored: list[str]) -> list[str]:
    """Notes that a tensor has one other name in the checkpoint."""
    if len(stored) != 1 or stored[0] not in layers.tensors:
        raise ModelError(f"tensor {name} is stored as {', '.join(stored) or 'nothing'}: such a layout cannot be quantized here")
    if stored[0] != name:
        layers.renamed[stored[0]] = name
    return stored


def _experts(model: PreTrainedModel, module: str, state: dict[str, Tensor]) -> list[tuple[str, str, str]]:
    """Names in the checkpoint of (gate, up, down) by expert."""
    fused = model.get_submodule(module)
    gated = getattr(type(fused), "_apply_gate", None)
    if gated is None or gated.__module__.startswith("transformers.models.") or fused.has_post_expert_norm:
        raise ModelError(
            f"the experts in {module} combine their projections in a way of their own: they cannot be quantized here"
        )
    own = {name: value for name, value in state.items() if name.rpartition(".")[0] == module}
    by_expert: dict[int, dict[str, str]] = {}
    for tensor in _in_checkpoint(model, own):
        match = EXPERT.match(tensor.removesuffix(".weight"))
        part = PART_OF.get(match.group(3)) if match else None
        if match is None or part is None:
            raise ModelError(f"the experts in {module} are stored as {tensor}: such a layout cannot be quantized here")
        by_expert.setdefault(int(match.group(2)), {})[part] = match.group()
    if any(parts.keys() != {"gate", "up", "down"} for parts in by_expert.values()):
        raise ModelError(f"the experts in {module} are not gated MLPs: they cannot be quantized here")
    return [(parts["gate"], parts["up"], parts["down"]) for _, parts in sorted(by_expert.items())]


PART_OF = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
"""Name of an expert's layer in checkpoints -> what it is (w1, w2, w3: Mixtral)."""


def _in_checkpoint(model: PreTrainedModel, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return revert_weight_conversion(model, state)


JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"), ("q_a_proj", "kv_a_proj_with_mqa"))
"""Last parts of the names of layers that are joined, in this order."""


def fused_layers(names: Iterable[str]) -> list[list[str]]:
    """The layers in groups: those that are joined together, every other alone."""
    known = dict.fromkeys(names)
    groups: dict[tuple[str, int], list[str]] = {}
    for name in known:
        module, _, last = name.rpartition(".")
        number = next((number for number, joined in enumerate(JOINED) if last in joined), None)
        groups.setdefault((name, -1) if number is None else (module, number), []).append(name)
    return [
        sorted(group, key=lambda name: JOINED[number].index(name.rpartition(".")[2])) if number >= 0 else group
        for (_, number), group in groups.items()
    ]

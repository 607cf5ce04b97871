"""LoRA of weights that are no linear layers: the experts of a mixture, stored as one three-dimensional weight, and routers.

Every expert has its own A [rank, in] and B [out, rank]. The grouped products of `experts` go through A and B, so that neither
the update nor its gradient takes the memory of the experts. A router's forward pass reads W + scaling B A.
"""

from __future__ import annotations

import functools
import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from model_ops.adapters.lora_settings import LoraSettings
from model_ops.families import ROUTERS
from model_ops.tensors import rounded, saved_update

PREFIX = "lora_"
"""An adapter is the child lora_NAME of the module that has the weight NAME."""


class ParameterAdapter(nn.Module):
    """The adapter of one weight: lora_A [experts, rank, in] and lora_B [experts, out, rank], without experts for a router."""

    def __init__(self, weight: Tensor, transposed: bool, settings: LoraSettings, generator: torch.Generator):
        super().__init__()
        *experts, outer, inner = weight.shape
        if transposed:
            outer, inner = inner, outer
        self.transposed, self.scaling, self.dropout = transposed, settings.scaling, settings.dropout
        drawn = (torch.rand(*experts, settings.rank, inner, generator=generator) * 2 - 1) / math.sqrt(inner)
        self.lora_A = nn.Parameter(drawn.to(weight.device))
        self.lora_B = nn.Parameter(torch.zeros(*experts, outer, settings.rank, device=weight.device))

    def seen(self, rows: Float[Tensor, "rows in"]) -> Float[Tensor, "rows in"]:
        """The adapter's input: `rows` after dropout."""
        return F.dropout(rows, self.dropout, self.training) if self.dropout else rows

    def update(self) -> Float[Tensor, "... out in"]:
        """The update of the weight, scaling B A, in the weight's own layout and in float32."""
        update = self.scaling * (self.lora_B.float() @ self.lora_A.float())
        return update.transpose(-2, -1) if self.transposed else update

    def extra_repr(self) -> str:
        return f"A={list(self.lora_A.shape)}, B={list(self.lora_B.shape)}, scaling={self.scaling:g}"


def adaptable_parameters(model: PreTrainedModel) -> list[str]:
    """Names of the weights of experts and routers that take such an adapter, in the model's order."""
    able = []
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        own = [(key, value) for key, value in module.named_parameters(recurse=False) if value.is_floating_point()]
        if last == "experts" and model._can_set_experts_implementation():
            able += [f"{name}.{key}" for key, value in own if value.ndim == 3]
        elif last in ROUTERS and not isinstance(module, nn.Linear):
            able += [f"{name}.{key}" for key, value in own if key == "weight" and value.ndim == 2]
    return able


def add_parameter_adapter(model: PreTrainedModel, name: str, settings: LoraSettings, generator: torch.Generator) -> None:
    """Adds an adapter to the weight `name` of `adaptable_parameters`. B is zero, so outputs do not change yet."""
    module, key = _owner(model, name)
    weight = _frozen(module, key)
    adapter = ParameterAdapter(weight, bool(getattr(module, "is_transposed", False)), settings, generator)
    module.add_module(f"{PREFIX}{key}", adapter.train(module.training))
    if weight.ndim == 2:
        kind: type = type(module)
        module.__class__ = _reads_adapted_weight(kind)


def adapted_parameters(model: nn.Module) -> dict[str, ParameterAdapter]:
    """The adapters by the name of their weight."""
    return {
        name.replace(f".{PREFIX}", "."): module
        for name, module in model.named_modules()
        if isinstance(module, ParameterAdapter)
    }


@torch.no_grad()
def merge_parameter_adapter(model: PreTrainedModel, name: str, dtype: torch.dtype) -> tuple[float, float]:
    """Replaces a weight by weight + update, rounded once to `dtype`, and removes its adapter. Returns `saved_update` of it."""
    module, key = _owner(model, name)
    update = getattr(module, f"{PREFIX}{key}").update()
    frozen = _frozen(module, key).float()
    merged = rounded(frozen + update, dtype, name)
    delattr(module, f"{PREFIX}{key}")
    if merged.ndim == 2:
        module.__class__ = type(module).__mro__[1]
    setattr(module, key, nn.Parameter(merged, requires_grad=False))
    return saved_update(frozen, frozen + update, merged)


@functools.cache
def _reads_adapted_weight(kind: type[nn.Module]) -> type[nn.Module]:
    """A subclass of `kind` whose attribute `weight` is the adapted weight, in its dtype; the parameter stays as it was."""

    def weight(self: nn.Module) -> Tensor:
        frozen = _frozen(self, "weight")
        return (frozen.float() + getattr(self, f"{PREFIX}weight").update()).to(frozen.dtype)

    return type(kind.__name__, (kind,), {"weight": property(weight)})


def frozen_parameter(model: nn.Module, name: str) -> nn.Parameter:
    """The frozen weight under an adapter, by its name in the model."""
    return _frozen(*_owner(model, name))


def _frozen(module: nn.Module, key: str) -> nn.Parameter:
    """The parameter itself, where the attribute is the adapted weight."""
    return dict(module.named_parameters(recurse=False))[key]


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    parent, _, key = name.rpartition(".")
    return model.get_submodule(parent), key

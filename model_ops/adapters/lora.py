"""LoRA (arXiv 2106.09685): a frozen weight W and a trained low-rank adapter, y = x W^T + scaling (x A^T) B^T. A and B are
float32; W keeps the dtype of its file and has no gradient. One autograd function computes both and saves only x and x A^T."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from model_ops.adapters.lora_settings import LoraSettings
from model_ops.families import ROUTERS
from model_ops.jobs import ModelError
from model_ops.parallel import whole_tensor
from model_ops.tensors import round_weight, saved_update

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
    merged = round_weight(frozen + update, dtype, name)
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


SHOWN = 8


class LoraLinear(nn.Linear):
    """A linear layer with frozen weight and bias, whose names do not change, and an adapter lora_A [rank, in], lora_B [out,
    rank]."""

    lora_A: nn.Parameter
    lora_B: nn.Parameter

    @classmethod
    def over(cls, linear: nn.Linear, settings: LoraSettings, generator: torch.Generator) -> LoraLinear:
        """Wraps `linear`. A is Kaiming uniform as in PEFT and B is zero, so outputs do not change yet."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.in_features, layer.out_features = linear.in_features, linear.out_features
        layer.take(linear)
        layer.scaling = settings.scaling
        layer.dropout = settings.dropout
        device = linear.weight.device
        bound = 1 / math.sqrt(linear.in_features)
        drawn = (torch.rand(settings.rank, linear.in_features, generator=generator) * 2 - 1) * bound
        layer.lora_A = nn.Parameter(drawn.to(device))
        layer.lora_B = nn.Parameter(torch.zeros(linear.out_features, settings.rank, device=device))
        return layer.train(linear.training)

    def take(self, linear: nn.Linear) -> None:
        """Stores the frozen weight. Subclasses with another storage format override this and `frozen`."""
        self.weight, self.bias = linear.weight, linear.bias

    def frozen(self, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        """The frozen weight for a product in `dtype`."""
        return self.weight.to(dtype)

    def forward(self, input: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        kind = input.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
        rows = input.to(dtype).reshape(-1, self.in_features)
        down, up = self.lora_A.to(dtype), self.lora_B.to(dtype)
        seen = F.dropout(rows, self.dropout, self.training) if self.dropout and self.training else None
        with torch.autocast(kind, enabled=False):
            output = _Adapted.apply(rows, seen, down, up, self)
        return output.view(*input.shape[:-1], self.out_features)

    def update(self) -> Float[Tensor, "out in"]:
        """The adapter's update of the weight, scaling B A, in float32."""
        return self.scaling * (self.lora_B.float() @ self.lora_A.float())

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.lora_A.shape[0]}, scaling={self.scaling:g}"


class _Adapted(torch.autograd.Function):
    """Frozen product plus adapter. seen: the adapter's input after dropout; None if it equals `rows`."""

    @staticmethod
    def forward(ctx, rows: Tensor, seen: Tensor | None, down: Tensor, up: Tensor, layer: LoraLinear) -> Tensor:
        bias = None if layer.bias is None else layer.bias.to(rows.dtype)
        low = (rows if seen is None else seen) @ down.T
        ctx.save_for_backward(rows if seen is None else seen, down, up, low)
        ctx.layer, ctx.dropped = layer, seen is not None
        # not in place: selective checkpointing saves the results of products, which must not change
        return torch.addmm(F.linear(rows, layer.frozen(rows.dtype), bias), low, up.T, alpha=layer.scaling)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        seen, down, up, low = ctx.saved_tensors
        layer = ctx.layer
        of_low = (gradient @ up).mul_(layer.scaling)
        of_down = of_low.T @ seen if ctx.needs_input_grad[2] else None
        of_up = (gradient.T @ low).mul_(layer.scaling) if ctx.needs_input_grad[3] else None
        of_rows = gradient @ layer.frozen(gradient.dtype) if ctx.needs_input_grad[0] else None
        of_seen = None
        if ctx.dropped:
            of_seen = of_low @ down if ctx.needs_input_grad[1] else None
        elif of_rows is not None:
            of_rows.addmm_(of_low, down)
        return of_rows, of_seen, of_down, of_up, None


@dataclass(frozen=True)
class AdapterCounts:
    """Counts of adapters and weights."""

    adapted_layers: int
    trained_parameters: int
    frozen_parameters: int
    left_out_parameters: int
    """Weights of experts without an adapter."""


def add_adapters(
    model: PreTrainedModel, settings: LoraSettings, seed: int = 0, kind: type[LoraLinear] = LoraLinear
) -> AdapterCounts:
    """Freezes every weight of `model` and adds adapters to the layers in `settings.targets`, in place. The same seed gives the
    same adapters on every device. Raises ModelError for a target that matches nothing or takes no adapter."""
    names = adapted_names(model, settings.targets)
    model.requires_grad_(False)
    left_out = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if _is_of_experts(name, parameter) and name not in names
    )
    generator = torch.Generator().manual_seed(seed)
    frozen = sum(parameter.numel() for parameter in model.parameters())
    parameters = set(adaptable_parameters(model))
    for name in names:
        if name in parameters:
            add_parameter_adapter(model, name, settings, generator)
            continue
        parent, _, last = name.rpartition(".")
        linear = model.get_submodule(name)
        setattr(model.get_submodule(parent), last, kind.over(linear, settings, generator))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return AdapterCounts(len(names), trained, frozen, left_out)


def adapted_names(model: PreTrainedModel, targets: list[str] | None) -> list[str]:
    """Names of the layers that get adapters, then of the weights: all linear layers of the blocks, or those whose name ends
    with a target (q_proj, self_attn.q_proj, layers.3.mlp.up_proj). Fused experts and routers are named with their
    module (experts, experts.down_proj, mlp.gate). Raises ModelError for a target that matches none."""
    linear = adaptable_names(model)
    if targets is None:
        return linear
    parameters = adaptable_parameters(model)
    routers = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name.rpartition(".")[2] in ROUTERS
    ]
    chosen: set[str] = set()
    for target in targets:
        matched = [name for name in (*linear, *routers) if _ends_with(name, target)]
        matched += [
            name
            for name in parameters
            if _ends_with(name.rpartition(".")[0], target) or ("." in target and _ends_with(name, target))
        ]
        if not matched:
            known = sorted({name.rpartition(".")[2] for name in linear} | {_last_two(name) for name in parameters})
            others = [name for name, _ in [*model.named_modules(), *model.named_parameters()] if _ends_with(name, target)]
            why = f"matches {others[0]}, which takes no adapter by this name" if others else "matches no layer of the model"
            raise ModelError(f"lora target {target!r} {why}; there are {', '.join(known[:SHOWN])}, such as {linear[0]}")
        chosen.update(matched)
    return [name for name in (*linear, *routers, *parameters) if name in chosen]


def adaptable_names(model: PreTrainedModel) -> list[str]:
    """Names of all linear layers except head and routers. Raises ModelError if there are none."""
    head = model.get_output_embeddings()
    able = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and name.rpartition(".")[2] not in ROUTERS
    ]
    if not able:
        raise ModelError(f"{type(model).__name__} has no linear layer to put an adapter on; use method: full")
    return able


def adapted_layers(model: nn.Module) -> dict[str, LoraLinear]:
    """The layers with adapters, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}


def merged_weights(model: nn.Module) -> Iterator[tuple[str, Float[Tensor, ...]]]:
    """(name, W + scaling B A in float32) of each weight that has an adapter, one at a time; the model keeps its adapters. Of a
    sharded model they are whole, so every process calls this."""
    for name, layer in adapted_layers(model).items():
        yield f"{name}.weight", whole_tensor(layer.frozen(torch.float32)) + whole_tensor(layer.update())
    for name, adapter in adapted_parameters(model).items():
        yield name, whole_tensor(frozen_parameter(model, name).float()) + whole_tensor(adapter.update())


@torch.no_grad()
def merge_adapters(model: PreTrainedModel, dtype: torch.dtype = torch.bfloat16) -> float:
    """Replaces adapters by plain linear layers with W + scaling B A, rounded once to `dtype`, in place. Returns the share of
    the adapters' update that the merged weights hold, over all layers (saved_update): near 1, because rounding is stochastic. 1
    if the adapters change nothing."""
    held = wanted = 0.0
    for name in adapted_parameters(model):
        along, size = merge_parameter_adapter(model, name, dtype)
        held, wanted = held + along, wanted + size
    for name, layer in adapted_layers(model).items():
        frozen = layer.frozen(torch.float32)
        exact = frozen + layer.update()
        merged = round_weight(exact, dtype, f"{name}.weight")
        along, size = saved_update(frozen, exact, merged)
        held, wanted = held + along, wanted + size
        plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        plain.weight = nn.Parameter(merged, requires_grad=False)
        if layer.bias is not None:
            plain.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, plain.train(layer.training))
    return held / wanted if wanted else 1.0


def _ends_with(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _last_two(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _is_of_experts(name: str, parameter: nn.Parameter) -> bool:
    return ".experts." in name and parameter.ndim == 3

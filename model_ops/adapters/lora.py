"""LoRA (arXiv 2106.09685): a frozen weight W and a trained low-rank adapter, y = x W^T + scaling (x A^T) B^T.

    layers = add_adapters(model, LoraSettings(rank=16))   # freezes the model, adds adapters to every linear layer
    merge_adapters(model)                                 # back to plain linear layers with W + scaling B A

The frozen weight has no gradient, no optimizer state and no float32 copy; it keeps the dtype of its file. A and B are float32;
their products run in autocast's precision. One autograd function computes frozen product and adapter: the backward pass
computes dX (two products), dA and dB, and the forward pass saves only x and x A^T. On accelerators, layers that read the same
tensor (q, k and v; gate and up) share one product with their stacked A, and one sum of dX.

By default every linear layer of the blocks gets an adapter. Routers (a change there affects every token) and experts that are
stored as one three-dimensional weight get one where `targets` names them (`lora_parameters`); `left_out_parameters` counts
the weights of such experts without an adapter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from model_ops.adapters.lora_parameters import (
    adaptable_parameters,
    adapted_parameters,
    add_parameter_adapter,
    frozen_parameter,
    merge_parameter_adapter,
)
from model_ops.adapters.lora_settings import LoraSettings
from model_ops.families import ROUTERS
from model_ops.jobs import ModelError
from model_ops.parallel import whole_tensor
from model_ops.tensors import kept_update, rounded, torch_internals

SHOWN = 8
SHARING = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of attention and of a gated MLP that read one tensor."""


class LoraLinear(nn.Linear):
    """A linear layer with frozen weight and bias, whose names do not change, and an adapter lora_A [rank, in], lora_B [out,
    rank]."""

    lora_A: nn.Parameter
    lora_B: nn.Parameter
    group: SharedInput | None = None
    """The layers that read the same tensor as this one."""

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
            if self.group is not None and seen is None and self.group.pays(self, torch_internals.device_kind(input)):
                return self.group.output_of(self, input, dtype)
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


class SharedInput:
    """Layers with adapters that are called with the same tensor, one after another: the first call computes all outputs."""

    def __init__(self, layers: list[LoraLinear]):
        self.layers = layers
        self._input: Tensor | None = None
        self._outputs: dict[int, Tensor] = {}
        for layer in layers:
            layer.group = self

    def pays(self, layer: LoraLinear, device: str) -> bool:
        """Whether a layer's output is computed with the others: on an accelerator, where nothing but this file computes the
        layers (no hooks, no weights that are sharded, no copy of one)."""
        if device == "cpu" or not any(each is layer for each in self.layers):
            return False
        parts = [part for layer in self.layers for part in (layer.weight, layer.lora_A)]
        return not any(isinstance(part, DTensor) for part in parts) and not any(
            map(torch_internals.has_forward_hooks, self.layers)
        )

    def output_of(self, layer: LoraLinear, input: Float[Tensor, "... in"], dtype: torch.dtype) -> Float[Tensor, "... out"]:
        """One layer's output for its input."""
        place = self.layers.index(layer)
        if self._input is not input or place not in self._outputs:
            rows = input.to(dtype).reshape(-1, layer.in_features)
            down = torch.cat([each.lora_A.to(dtype) for each in self.layers])
            outputs = _AdaptedTogether.apply(rows, down, self.layers, *(each.lora_B.to(dtype) for each in self.layers))
            self._input, self._outputs = input, dict(enumerate(outputs))
        output = self._outputs.pop(place)
        if not self._outputs:
            self._input = None
        return output.view(*input.shape[:-1], layer.out_features)


class _AdaptedTogether(torch.autograd.Function):
    """`_Adapted` of several layers over the same rows, without dropout. down: their A, stacked."""

    @staticmethod
    def forward(ctx, rows: Tensor, down: Tensor, layers: list[LoraLinear], *ups: Tensor) -> tuple[Tensor, ...]:
        low = rows @ down.T
        ctx.save_for_backward(rows, down, low, *ups)
        ctx.layers, outputs = layers, []
        for layer, up, part in zip(layers, ups, low.split([up.shape[1] for up in ups], 1), strict=True):
            bias = None if layer.bias is None else layer.bias.to(rows.dtype)
            outputs.append(torch.addmm(F.linear(rows, layer.frozen(rows.dtype), bias), part, up.T, alpha=layer.scaling))
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        rows, down, low, *ups = ctx.saved_tensors
        of_low, of_ups, of_rows = torch.empty_like(low), [], None
        parts = zip(*(each.split([up.shape[1] for up in ups], 1) for each in (low, of_low)), strict=True)
        for layer, up, gradient, (part, of_part) in zip(ctx.layers, ups, gradients, parts, strict=True):
            of_part.copy_((gradient @ up).mul_(layer.scaling))
            of_ups.append((gradient.T @ part).mul_(layer.scaling))
            if ctx.needs_input_grad[0]:
                weight = layer.frozen(gradient.dtype)
                of_rows = gradient @ weight if of_rows is None else of_rows.addmm_(gradient, weight)
        if of_rows is not None:
            of_rows.addmm_(of_low, down)
        return of_rows, of_low.T @ rows, None, *of_ups


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
    """Freezes every weight of `model` and adds adapters to the layers in `settings.targets`, in place.

    The same seed gives the same adapters on every device. Raises ModelError for a target that matches nothing or takes no
    adapter.
    """
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
    _share_inputs(model, kind)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return AdapterCounts(len(names), trained, frozen, left_out)


def _share_inputs(model: nn.Module, kind: type[LoraLinear]) -> None:
    """Groups the layers of each attention and MLP that read the same tensor."""
    for module in model.modules():
        for names in SHARING:
            layers = [getattr(module, name, None) for name in names]
            if all(type(layer) is kind for layer in layers) and len({layer.in_features for layer in layers}) == 1:
                SharedInput(layers)


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
    """(name, W + scaling B A in float32) of each weight that has an adapter, one at a time; the model keeps its adapters.

    Of a sharded model they are whole, so every process calls this."""
    for name, layer in adapted_layers(model).items():
        yield f"{name}.weight", whole_tensor(layer.frozen(torch.float32)) + whole_tensor(layer.update())
    for name, adapter in adapted_parameters(model).items():
        yield name, whole_tensor(frozen_parameter(model, name).float()) + whole_tensor(adapter.update())


@torch.no_grad()
def merge_adapters(model: PreTrainedModel, dtype: torch.dtype = torch.bfloat16) -> float:
    """Replaces adapters by plain linear layers with W + scaling B A, rounded once to `dtype`, in place.

    Returns the share of the adapters' update that the merged weights hold, over all layers (kept_update): near 1, because
    rounding is stochastic. 1 if the adapters change nothing.
    """
    held = wanted = 0.0
    for name in adapted_parameters(model):
        along, size = merge_parameter_adapter(model, name, dtype)
        held, wanted = held + along, wanted + size
    for name, layer in adapted_layers(model).items():
        frozen = layer.frozen(torch.float32)
        exact = frozen + layer.update()
        merged = rounded(exact, dtype, f"{name}.weight")
        along, size = kept_update(frozen, exact, merged)
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

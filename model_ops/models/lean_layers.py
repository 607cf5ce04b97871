"""Norms and gated MLPs that keep less of their forward pass for the backward one, with the same results.

    make_lean(model)        # before it is trained; returns how many modules keep less

transformers' RMSNorm keeps its input twice in float32 and its MLP four tensors of the MLP's width. Here a norm keeps
its input, which the residual stream holds anyway, and one number per token; an MLP keeps gate and up, and takes their
product again in the backward pass. On a Qwen3 shape in bfloat16 that is half of the memory of all activations.

A module is changed only where, tried on numbers, it gives what its own code gives, gradients included; every other one
stays as its author wrote it. Calls go through the module's own linear layers, so adapters keep working.
"""

from __future__ import annotations

import copy
import types

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

WIDTH = 8
"""Of the small modules that are tried."""

GEMMA_NORMS = ("Gemma", "T5Gemma")
"""Families whose norm scales by 1 + weight, before it rounds."""


def make_lean(model: nn.Module) -> int:
    """Changes the modules of `model` that are understood, in place; returns how many."""
    found: dict[type, bool] = {}
    changed = 0
    for module in model.modules():
        forward = None if "forward" in module.__dict__ else _lean_forward(module)
        if forward is None:  # not understood, or another part of the trainer has given it a forward of its own
            continue
        if type(module) not in found:
            found[type(module)] = _gives_the_same(module, forward)
        if found[type(module)]:
            module.forward = types.MethodType(forward, module)
            changed += 1
    return changed


def _lean_forward(module: nn.Module):
    name = type(module).__name__
    if name.endswith("RMSNorm") and module._parameters.get("weight") is not None:
        if name.startswith(GEMMA_NORMS):
            return _gemma_norm_forward if hasattr(module, "eps") else None
        return _norm_forward if hasattr(module, "variance_epsilon") else None
    gated = all(isinstance(getattr(module, layer, None), nn.Module) for layer in ("gate_proj", "up_proj", "down_proj"))
    return _mlp_forward if gated and _derivative_of(getattr(module, "act_fn", None)) is not None else None


def _norm_forward(self: nn.Module, hidden_states: Tensor) -> Tensor:
    if isinstance(self.weight, DTensor):
        return type(self).forward(self, hidden_states)
    return _RmsNorm.apply(hidden_states, self.weight, self.variance_epsilon, 0.0)


def _gemma_norm_forward(self: nn.Module, x: Tensor) -> Tensor:
    if isinstance(self.weight, DTensor):
        return type(self).forward(self, x)
    return _RmsNorm.apply(x, self.weight, self.eps, 1.0)


def _mlp_forward(self: nn.Module, x: Tensor) -> Tensor:
    gate, up, down = self.gate_proj(x), self.up_proj(x), self.down_proj
    # Only a plain layer may be taken out of its module's hands: adapters, quantized weights and hooks (a layer that is
    # cut over processes has them) keep theirs.
    plain = type(down) is nn.Linear and down.bias is None and not isinstance(down.weight, DTensor)
    if plain and down.weight.requires_grad and not down._forward_hooks and not down._forward_pre_hooks:
        return _GatedDown.apply(gate, up, down.weight.to(gate.dtype), self.act_fn)
    return down(_Gated.apply(gate, up, self.act_fn))


def rms_norm(x: Float[Tensor, "*rows hidden"], weight: Float[Tensor, " hidden"], epsilon: float) -> Tensor:
    """RMSNorm that keeps its input and one number a row; under autocast its output is in autocast's dtype."""
    return _RmsNorm.apply(x, weight, epsilon, 0.0)


class _RmsNorm(torch.autograd.Function):
    """y = (offset + w) * x / rms(x), computed in float32 (Zhang and Sennrich 2019, arXiv 1910.07467).

    Under autocast a float32 input or weight gives an output in autocast's dtype: whatever reads a norm is a matrix product,
    which would round it so itself. Else the output's dtype and the order of rounding are those of the module's own code.
    """

    @staticmethod
    def forward(ctx, x: Float[Tensor, "*rows hidden"], weight: Float[Tensor, " hidden"], epsilon: float, offset: float):
        kind = x.device.type
        exact = x.float()
        scale = exact.pow(2).mean(-1, keepdim=True).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        ctx.offset = offset
        normed, factor = exact * scale, weight.float() + offset if offset else weight
        if torch.float32 in (x.dtype, weight.dtype) and torch.is_autocast_enabled(kind):
            return normed.mul_(factor).to(torch.get_autocast_dtype(kind))
        return normed.mul_(factor).to(x.dtype) if offset else factor * normed.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        x, weight, scale = ctx.saved_tensors
        normed, gradient = x.float() * scale, gradient.float()
        weight_gradient = None
        if ctx.needs_input_grad[1]:
            weight_gradient = (gradient * normed).flatten(0, -2).sum(0).to(weight.dtype)
        inner = gradient * (weight.float() + ctx.offset if ctx.offset else weight)
        inner -= normed * (inner * normed).mean(-1, keepdim=True)
        return inner.mul_(scale).to(x.dtype), weight_gradient, None, None


class _Gated(torch.autograd.Function):
    """act(gate) * up; keeps gate and up alone."""

    @staticmethod
    def forward(ctx, gate: Float[Tensor, "*rows mlp"], up: Float[Tensor, "*rows mlp"], act: nn.Module) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.act = act
        return act(gate) * up

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        gate, up = ctx.saved_tensors
        return *_gated_gradients(gradient, gate, up, ctx.act), None


class _GatedDown(torch.autograd.Function):
    """(act(gate) * up) @ down.T; the product that enters the last matrix is taken again for that matrix's gradient."""

    @staticmethod
    def forward(ctx, gate: Float[Tensor, "*rows mlp"], up: Float[Tensor, "*rows mlp"], down: Float[Tensor, "hidden mlp"],
                act: nn.Module) -> Tensor:
        ctx.save_for_backward(gate, up, down)
        ctx.act = act
        return F.linear(act(gate).mul_(up), down)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        gate, up, down = ctx.saved_tensors
        entered = ctx.act(gate).mul_(up)
        down_gradient = gradient.flatten(0, -2).T @ entered.flatten(0, -2)
        del entered
        return *_gated_gradients(gradient @ down, gate, up, ctx.act), down_gradient, None


def _gated_gradients(gradient: Tensor, gate: Tensor, up: Tensor, act: nn.Module) -> tuple[Tensor, Tensor]:
    activated = act(gate)
    gate_gradient = _derivative_of(act)(gradient * up, gate)
    return gate_gradient, activated.mul_(gradient)


def _derivative_of(act: nn.Module | None):
    """(gradient, input) -> gradient of the input, for the activations that are understood."""
    name = type(act).__name__
    if isinstance(act, nn.SiLU) or name == "SiLUActivation":
        return torch.ops.aten.silu_backward
    if name in ("GELUTanh", "PytorchGELUTanh"):
        return lambda gradient, gate: torch.ops.aten.gelu_backward(gradient, gate, approximate="tanh")
    return None


def _gives_the_same(module: nn.Module, lean) -> bool:
    """Whether a small module of this kind, in float32, gives equal outputs and gradients both ways."""
    tried = copy.copy(module)
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False):
        torch.manual_seed(0)
        if module._parameters:
            tried._parameters = {"weight": nn.Parameter(torch.randn(WIDTH))}
        else:
            tried._modules = {**module._modules, "gate_proj": nn.Linear(WIDTH, 6, bias=False),
                              "up_proj": nn.Linear(WIDTH, 6, bias=False), "down_proj": nn.Linear(6, WIDTH, bias=False)}
        x, upstream, results = torch.randn(1, 3, WIDTH), torch.randn(1, 3, WIDTH), []
        with torch.enable_grad():
            for forward in (type(tried).forward, lean):
                given = x.clone().requires_grad_(True)
                output = forward(tried, given)
                results.append([output, *torch.autograd.grad(output, [given, *tried.parameters()], upstream)])
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip(*results, strict=True))

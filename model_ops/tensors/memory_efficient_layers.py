"""RMSNorm and gated MLP that save fewer activations for the backward pass, with the same results: a norm saves its input and
one number per token, an MLP gate and up. On a Qwen3 shape in bfloat16 this halves the memory of all activations. A module is
changed only if a trial on random numbers gives the outputs and gradients of its own code."""

import types
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from model_ops.tensors import fused_rows
from model_ops.tensors.torch_internals import has_forward_hooks, shallow_copy

WIDTH = 8
"""Hidden size of the small modules in the trial."""

GEMMA_NORMS = ("Gemma", "T5Gemma")
"""Model families whose RMSNorm scales by 1 + weight, before it rounds."""


Forward = Callable[..., Tensor]


def use_memory_efficient_layers(model: nn.Module) -> int:
    """Replaces the forward of every RMSNorm and gated MLP that passes the trial, in place. Returns the number of modules that
    were changed."""
    passed: dict[type, bool] = {}
    changed = 0
    for module in model.modules():
        forward = None if "forward" in module.__dict__ else _efficient_forward(module)
        if forward is None:  # an unknown module, or one whose forward was replaced already
            continue
        if type(module) not in passed:
            passed[type(module)] = _gives_the_same(module, forward)
        if passed[type(module)]:
            module.forward = types.MethodType(forward, module)
            changed += 1
    return changed


def _efficient_forward(module: nn.Module) -> Forward | None:
    name = type(module).__name__
    if name.endswith("RMSNorm") and getattr(module, "weight", None) is not None:
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
    # Only a plain layer may be computed here: adapters, quantized weights and hooks (a layer that is sharded over
    # processes has them) need the layer's own forward.
    plain = type(down) is nn.Linear and down.bias is None and not isinstance(down.weight, DTensor)
    if plain and down.weight.requires_grad and not has_forward_hooks(down):
        return _GatedDown.apply(gate, up, down.weight.to(gate.dtype), self.act_fn)
    return down(_Gated.apply(gate, up, self.act_fn))


def rms_norm(x: Float[Tensor, "*rows hidden"], weight: Float[Tensor, " hidden"], epsilon: float) -> Tensor:
    """RMSNorm that saves its input and one number per row. Under autocast, the output has autocast's dtype."""
    return _RmsNorm.apply(x, weight, epsilon, 0.0)


class _RmsNorm(torch.autograd.Function):
    """y = (offset + w) * x / rms(x), computed in float32 (Zhang and Sennrich 2019, arXiv 1910.07467). Under autocast a float32
    input or weight gives an output in autocast's dtype: a matrix product reads the output and would round it to that dtype.
    Otherwise dtype and order of rounding are the same as in the module's own code."""

    @staticmethod
    def forward(ctx, x: Float[Tensor, "*rows hidden"], weight: Float[Tensor, " hidden"], epsilon: float, offset: float):
        kind = x.device.type
        ctx.offset = offset
        rounded = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        if (
            weight.dtype == torch.float32
            and rounded in (torch.bfloat16, x.dtype)
            and fused_rows.takes(x, weight)
            and (x.dtype == torch.float32 or torch.is_autocast_enabled(kind))
        ):
            output, scale = fused_rows.norm(x, weight + offset if offset else weight, epsilon, rounded)
            ctx.save_for_backward(x, weight, scale)
            return output
        exact = x.float()
        scale = exact.pow(2).mean(-1, keepdim=True).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        normed, factor = exact * scale, weight.float() + offset if offset else weight
        if torch.float32 in (x.dtype, weight.dtype) and torch.is_autocast_enabled(kind):
            return normed.mul_(factor).to(torch.get_autocast_dtype(kind))
        return normed.mul_(factor).to(x.dtype) if offset else factor * normed.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        x, weight, scale = ctx.saved_tensors
        if weight.dtype == torch.float32 and fused_rows.takes(x, gradient):
            return *fused_rows.norm_gradient(gradient, x, weight + ctx.offset if ctx.offset else weight, scale), None, None
        normed, gradient = x.float() * scale, gradient.float()
        weight_gradient = None
        if ctx.needs_input_grad[1]:
            weight_gradient = (gradient * normed).flatten(0, -2).sum(0).to(weight.dtype)
        inner = gradient * (weight.float() + ctx.offset if ctx.offset else weight)
        inner -= normed * (inner * normed).mean(-1, keepdim=True)
        return inner.mul_(scale).to(x.dtype), weight_gradient, None, None


class _Gated(torch.autograd.Function):
    """act(gate) * up; saves only gate and up."""

    @staticmethod
    def forward(ctx, gate: Float[Tensor, "*rows mlp"], up: Float[Tensor, "*rows mlp"], act: nn.Module) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.act = act
        return _gated(gate, up, act)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        gate, up = ctx.saved_tensors
        return *_gated_gradients(gradient, gate, up, ctx.act, again=False)[:2], None


class _GatedDown(torch.autograd.Function):
    """(act(gate) * up) @ down.T; the backward pass recomputes act(gate) * up for the gradient of `down`."""

    @staticmethod
    def forward(
        ctx, gate: Float[Tensor, "*rows mlp"], up: Float[Tensor, "*rows mlp"], down: Float[Tensor, "hidden mlp"], act: nn.Module
    ) -> Tensor:
        ctx.save_for_backward(gate, up, down)
        ctx.act = act
        return F.linear(_gated(gate, up, act), down)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        gate, up, down = ctx.saved_tensors
        gate_gradient, up_gradient, entered = _gated_gradients(gradient @ down, gate, up, ctx.act)
        return gate_gradient, up_gradient, gradient.flatten(0, -2).T @ entered.flatten(0, -2), None


def _gated(gate: Tensor, up: Tensor, act: nn.Module) -> Tensor:
    """act(gate) * up."""
    known = fused_rows.activation_of(act)
    if known is not None and gate.dtype == up.dtype and fused_rows.takes(gate, up):
        return fused_rows.gated(gate, up, known)
    return act(gate).mul_(up)


def _gated_gradients(
    gradient: Tensor, gate: Tensor, up: Tensor, act: nn.Module, again: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of gate and up, and act(gate) * up if that is wanted `again`, else a tensor without a meaning."""
    known = fused_rows.activation_of(act)
    if known is not None and gate.dtype == up.dtype and fused_rows.takes(gate, up, gradient):
        return fused_rows.gated_gradient(gradient, gate, up, known)
    activated = act(gate)
    gate_gradient = _derivative_of(act)(gradient * up, gate)
    return gate_gradient, activated * gradient, activated.mul_(up) if again else activated


def _derivative_of(act: nn.Module | None):
    """(gradient, input) -> gradient of the input, for the supported activations; None for any other."""
    name = type(act).__name__
    if isinstance(act, nn.SiLU) or name == "SiLUActivation":
        return torch.ops.aten.silu_backward
    if name in ("GELUTanh", "PytorchGELUTanh"):
        return lambda gradient, gate: torch.ops.aten.gelu_backward(gradient, gate, approximate="tanh")
    return None


def _gives_the_same(module: nn.Module, efficient: Forward) -> bool:
    """Whether a small module of this kind, in float32, gives equal outputs and gradients with both forwards."""
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False):
        torch.manual_seed(0)
        if any(True for _ in module.parameters(recurse=False)):
            tried = shallow_copy(module, parameters={"weight": nn.Parameter(torch.randn(WIDTH))})
        else:
            tried = shallow_copy(
                module,
                modules={
                    "gate_proj": nn.Linear(WIDTH, 6, bias=False),
                    "up_proj": nn.Linear(WIDTH, 6, bias=False),
                    "down_proj": nn.Linear(6, WIDTH, bias=False),
                },
            )
        x, upstream, results = torch.randn(1, 3, WIDTH), torch.randn(1, 3, WIDTH), []
        with torch.enable_grad():
            for forward in (type(tried).forward, efficient):
                given = x.clone().requires_grad_(True)
                try:
                    output = forward(tried, given)
                    results.append([output, *torch.autograd.grad(output, [given, *tried.parameters()], upstream)])
                except (TypeError, ValueError, AttributeError, RuntimeError):  # a layer of other parts
                    return False
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip(*results, strict=True))

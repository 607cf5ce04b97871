"""RMSNorm and gated MLP that save fewer activations for the backward pass, with the same results.

    use_memory_efficient_layers(model)        # before training; returns the number of modules that were changed

RMSNorm of transformers saves its input twice in float32, and its MLP saves four tensors of the MLP's width. Here a norm
saves its input, which the residual stream holds anyway, and one number per token. An MLP saves gate and up, and recomputes
their product in the backward pass. On a Qwen3 shape in bfloat16 this halves the memory of all activations.

A module is changed only if a trial on random numbers gives the outputs and gradients of the module's own code. Every other
module keeps its own forward. Calls go through the module's own linear layers, so adapters keep working.

Large float32 and bfloat16 tensors take one pass over memory for each layer: on a CPU by model_ops.tensors.fused_rows, on CUDA
by Triton's kernels of model_ops.tensors.cuda_rows. There a block also adds attention's output and norms the sum in one pass,
and queries and keys are rotated in one.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from model_ops.tensors import cuda_rows, fused_rows
from model_ops.tensors.torch_internals import device_kind, has_forward_hooks, shallow_copy

WIDTH = 8
"""Hidden size of the small modules in the trial."""

BLOCK = ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
"""Parts of a block of which attention and MLP read a norm and are added to what it read."""

GEMMA_NORMS = ("Gemma", "T5Gemma")
"""Model families whose RMSNorm scales by 1 + weight, before it rounds."""


def use_memory_efficient_layers(model: nn.Module) -> int:
    """Replaces the forward of every RMSNorm and gated MLP that passes the trial, in place; on CUDA also that of every block,
    and its family's rotary function. Returns the number of modules that were changed."""
    found: dict[type, bool] = {}
    changed, blocks = 0, _on_cuda(model)
    for module in model.modules():
        forward = None if "forward" in module.__dict__ else _efficient_forward(module, blocks)
        if forward is None:  # an unknown module, or one whose forward was replaced already
            continue
        if type(module) not in found:
            found[type(module)] = _gives_the_same(module, forward)
            if forward is _block_forward:
                _rotate_in_one_pass(type(module))
        if found[type(module)]:
            module.forward = types.MethodType(forward, module)
            changed += 1
    return changed


def _on_cuda(model: nn.Module) -> bool:
    """Whether the model is on CUDA, or planned for it."""
    return any(device_kind(parameter) == "cuda" for parameter in islice(model.parameters(), 1))


def _efficient_forward(module: nn.Module, blocks: bool):
    name = type(module).__name__
    if name.endswith("RMSNorm") and getattr(module, "weight", None) is not None:
        if name.startswith(GEMMA_NORMS):
            return _gemma_norm_forward if hasattr(module, "eps") else None
        return _norm_forward if hasattr(module, "variance_epsilon") else None
    if blocks and all(hasattr(module, layer) for layer in BLOCK):
        return _block_forward
    gated = all(isinstance(getattr(module, layer, None), nn.Module) for layer in ("gate_proj", "up_proj", "down_proj"))
    return _mlp_forward if gated and _derivative_of(getattr(module, "act_fn", None)) is not None else None


def _block_forward(self: nn.Module, hidden_states: Tensor, *given: object, **named: object) -> Tensor:
    attended, _ = self.self_attn(self.input_layernorm(hidden_states), *given, **named)
    norm = self.post_attention_layernorm
    whole = (
        torch.promote_types(attended.dtype, hidden_states.dtype) == hidden_states.dtype
        and not isinstance(norm.weight, DTensor)
        and not has_forward_hooks(norm)
    )
    if whole and getattr(norm.forward, "__func__", None) is _norm_forward and _takes_norm(hidden_states, norm.weight):
        hidden_states, normed = _AddedNorm.apply(hidden_states, attended, norm.weight, norm.variance_epsilon)
    else:
        hidden_states = hidden_states + attended
        normed = norm(hidden_states)
    return hidden_states + self.mlp(normed)


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
    """y = (offset + w) * x / rms(x), computed in float32 (Zhang and Sennrich 2019, arXiv 1910.07467).

    Under autocast a float32 input or weight gives an output in autocast's dtype: a matrix product reads the output and
    would round it to that dtype. Otherwise dtype and order of rounding are the same as in the module's own code.
    """

    @staticmethod
    def forward(ctx, x: Float[Tensor, "*rows hidden"], weight: Float[Tensor, " hidden"], epsilon: float, offset: float):
        kind = x.device.type
        ctx.offset = offset
        if _takes_norm(x, weight):
            _, output, scale = cuda_rows.norm(x, None, weight, epsilon, offset, *_rounding(x, weight, offset))
            ctx.save_for_backward(x, weight, scale)
            return output
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
        if _takes_norm(x, weight):
            return *cuda_rows.norm_gradient(gradient, None, x, weight, scale, ctx.offset, ctx.needs_input_grad[1]), None, None
        if weight.dtype == torch.float32 and fused_rows.takes(x, gradient):
            return *fused_rows.norm_gradient(gradient, x, weight + ctx.offset if ctx.offset else weight, scale), None, None
        normed, gradient = x.float() * scale, gradient.float()
        weight_gradient = None
        if ctx.needs_input_grad[1]:
            weight_gradient = (gradient * normed).flatten(0, -2).sum(0).to(weight.dtype)
        inner = gradient * (weight.float() + ctx.offset if ctx.offset else weight)
        inner -= normed * (inner * normed).mean(-1, keepdim=True)
        return inner.mul_(scale).to(x.dtype), weight_gradient, None, None


class _AddedNorm(torch.autograd.Function):
    """(x + added, RMSNorm of the sum), by one kernel of CUDA; the backward pass adds the gradients of both in one as well."""

    @staticmethod
    def forward(ctx, x: Float[Tensor, "*rows hidden"], added: Tensor, weight: Float[Tensor, " hidden"], epsilon: float):
        summed, output, scale = cuda_rows.norm(x, added, weight, epsilon, 0.0, *_rounding(x, weight, 0.0))
        ctx.save_for_backward(summed, weight, scale)
        ctx.dtype = added.dtype
        return summed, output

    @staticmethod
    @once_differentiable
    def backward(ctx, of_sum: Tensor, gradient: Tensor):
        summed, weight, scale = ctx.saved_tensors
        found, of_weight = cuda_rows.norm_gradient(gradient, of_sum, summed, weight, scale, 0.0, ctx.needs_input_grad[2])
        return found, found.to(ctx.dtype), of_weight, None


def _takes_norm(x: Tensor, weight: Tensor) -> bool:
    """Whether CUDA's kernel computes the norm; without autocast, of one dtype."""
    alike = x.dtype == weight.dtype or torch.is_autocast_enabled(x.device.type)
    return alike and x.shape[-1] <= cuda_rows.WIDEST and cuda_rows.takes(x, weight)


def _rounding(x: Tensor, weight: Tensor, offset: float) -> tuple[bool, torch.dtype]:
    """(whether the normed values are rounded before the weight's product, dtype of the output), as `_RmsNorm` says."""
    autocast = torch.float32 in (x.dtype, weight.dtype) and torch.is_autocast_enabled(x.device.type)
    return not offset and not autocast, torch.get_autocast_dtype(x.device.type) if autocast else x.dtype


class _Rotated(torch.autograd.Function):
    """Rotary positions by a kernel of CUDA, [1, heads, tokens, head_dim]; saves only cos and sin."""

    @staticmethod
    def forward(ctx, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return cuda_rows.rotated(x[0].transpose(0, 1), cos[0], sin[0]).transpose(0, 1)[None]

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        cos, sin = ctx.saved_tensors
        return cuda_rows.rotated(gradient[0].transpose(0, 1), cos[0], sin[0], -1.0).transpose(0, 1)[None], None, None


def _rotate(plain: Callable, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """transformers' function `apply_rotary_pos_emb`, whose own code `plain` is."""
    alike = cos.ndim == 3 and len(cos) == len(q) == len(k) == 1 and cos.shape[-1] == q.shape[-1] == k.shape[-1]
    if alike and unsqueeze_dim == 1 and cuda_rows.takes(q, k, cos, sin):
        return _Rotated.apply(q, cos, sin), _Rotated.apply(k, cos, sin)
    return plain(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)


def _rotate_in_one_pass(block: type) -> None:
    """Puts `_rotate` into the place of a family's rotary function, if that turns halves of heads as the kernel does."""
    module = sys.modules[block.__module__]
    plain = getattr(module, "apply_rotary_pos_emb", None)
    if plain is None or isinstance(plain, partial):
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        q, k, angles = torch.randn(1, 2, 3, WIDTH), torch.randn(1, 1, 3, WIDTH), torch.randn(1, 3, WIDTH // 2).repeat(1, 1, 2)
    half = WIDTH // 2
    wanted = [each * angles.cos() + torch.cat((-each[..., half:], each[..., :half]), -1) * angles.sin() for each in (q, k)]
    try:
        found = plain(q, k, angles.cos(), angles.sin())
    except (TypeError, RuntimeError, ValueError):  # a function with other arguments
        return
    if all(torch.allclose(one, other, atol=1e-6) for one, other in zip(found, wanted, strict=True)):
        vars(module)["apply_rotary_pos_emb"] = partial(_rotate, plain)


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
    if known is not None and gate.dtype == up.dtype:
        for rows in (fused_rows, cuda_rows):
            if rows.takes(gate, up):
                return rows.gated(gate, up, known)
    return act(gate).mul_(up)


def _gated_gradients(
    gradient: Tensor, gate: Tensor, up: Tensor, act: nn.Module, again: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of gate and up, and act(gate) * up, which may be left out unless it is wanted `again`."""
    known = fused_rows.activation_of(act)
    if known is not None and gate.dtype == up.dtype:
        if fused_rows.takes(gate, up, gradient):
            return fused_rows.gated_gradient(gradient, gate, up, known)
        if cuda_rows.takes(gate, up, gradient):
            return cuda_rows.gated_gradient(gradient, gate, up, known, again)
    activated = act(gate)
    gate_gradient = _derivative_of(act)(gradient * up, gate)
    return gate_gradient, activated * gradient, activated.mul_(up) if again else None


def _derivative_of(act: nn.Module | None):
    """(gradient, input) -> gradient of the input, for the supported activations; None for any other."""
    name = type(act).__name__
    if isinstance(act, nn.SiLU) or name == "SiLUActivation":
        return torch.ops.aten.silu_backward
    if name in ("GELUTanh", "PytorchGELUTanh"):
        return lambda gradient, gate: torch.ops.aten.gelu_backward(gradient, gate, approximate="tanh")
    return None


class _Tried(nn.Module):
    """Stands for attention in the trial of a block."""

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> tuple[Tensor, None]:
        return hidden_states.sin(), None


def _gives_the_same(module: nn.Module, efficient) -> bool:
    """Whether a small module of this kind, in float32, gives equal outputs and gradients with both forwards."""
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False):
        torch.manual_seed(0)
        if efficient is _block_forward:
            norms = [shallow_copy(getattr(module, name), {"weight": nn.Parameter(torch.randn(WIDTH))}) for name in BLOCK[2:]]
            tried = shallow_copy(module, modules=dict(zip(BLOCK, [_Tried(), nn.Tanh(), *norms], strict=True)))
        elif any(True for _ in module.parameters(recurse=False)):
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
                except (TypeError, ValueError, AttributeError, RuntimeError):  # a block of other parts
                    return False
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip(*results, strict=True))

"""Attention of a packed row on CUDA in one kernel call per layer: documents, sliding windows and sinks, no copies or padding.

    if takes_varlen_kernel(...):
        output = varlen_attention(query, key, value, lengths, scaling, window=128, sinks=module.sinks)

A sink is one logit s per head in the softmax, without a value. It changes the log-sum-exp l and the output o to
    L = log(exp(l) + exp(s));   O = exp(l - L) o;   ds = -sum over queries of exp(s - L) (O . gradient)
and the kernel's backward pass with L and O gives the other gradients. The kernel has no soft caps; block_attention does.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from model_ops.models import varlen_kernel
from model_ops.models.varlen_kernel import Boundaries


def varlen_attention(
    query: Float[Tensor, "tokens heads head_dim"],
    key: Float[Tensor, "tokens kv_heads head_dim"],
    value: Float[Tensor, "tokens kv_heads head_dim"],
    lengths: list[int],
    scaling: float,
    window: int | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "tokens heads head_dim"]:
    """Causal attention within each document; consecutive query heads share a key head. Differentiable in all four tensors.

    lengths: of the documents, laid end to end. window: positions that a query sees, its own included."""
    if window is not None and window >= max(lengths):
        window = None
    return _VarlenAttention.apply(query, key, value, sinks, Boundaries.of(lengths, query.device), scaling, window)


class _VarlenAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, boundaries: Boundaries, scaling: float,
                window: int | None):
        output, normaliser = varlen_kernel.varlen_forward(query, key, value, boundaries, scaling, window)
        if sinks is not None:
            joined = torch.logaddexp(normaliser, sinks.float()[:, None])
            output = output * (normaliser - joined).exp().T[..., None].to(output.dtype)
            normaliser = joined
        ctx.save_for_backward(query, key, value, output, normaliser, *([] if sinks is None else [sinks]))
        ctx.options = (boundaries, scaling, window)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        query, key, value, output, normaliser, *sinks = ctx.saved_tensors
        streams = varlen_kernel.varlen_backward(gradient, query, key, value, output, normaliser, *ctx.options)
        of_sinks = None
        if sinks:
            inner = (output.float() * gradient.float()).sum(-1)  # [tokens, heads]
            of_sinks = -((sinks[0].float() - normaliser.T).exp() * inner).sum(0).to(sinks[0].dtype)
        return *streams, of_sinks, None, None, None

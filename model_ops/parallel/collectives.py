"""Differentiable collectives for use inside a model (the gradient of each is its transpose), and gathers of results. Tensors
are [1, tokens, width]: one packed row at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from model_ops.tensors import round_weight

# It logs advice to gather over several axes in one call for every tensor; gathering happens once per run.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def leads() -> bool:
    """Whether this is the first process, which writes files."""
    return not dist.is_initialized() or dist.get_rank() == 0


def wait_for_all() -> None:
    """Waits until every process has called this."""
    if dist.is_initialized():
        dist.barrier()


def whole_tensor(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor, on its device; another tensor as it is. Every process calls this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_tensors(tensors: Mapping[str, Tensor], keep: bool, to: torch.dtype) -> dict[str, Tensor]:
    """The whole tensors on the CPU, floating-point ones in dtype `to`, rounded as `round_weight` does; {} if keep is False."""
    whole = {}
    for name, value in tensors.items():
        value = whole_tensor(value.detach())
        if keep:
            whole[name] = round_weight(value.cpu(), to, name) if value.is_floating_point() else value.cpu()
    return whole


def gather_parameters(model: nn.Module, keep: bool) -> None:
    """Replaces a model's sharded parameters by whole ones on the CPU if keep is True; otherwise the model stays sharded. Shared
    parameters stay shared."""
    gathered: dict[int, nn.Parameter] = {}
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if not isinstance(parameter, DTensor):
                continue
            if id(parameter) not in gathered:
                whole = parameter.detach().full_tensor()
                gathered[id(parameter)] = nn.Parameter(whole.cpu(), parameter.requires_grad) if keep else parameter
            setattr(module, name, gathered[id(parameter)])
    if gathered and keep:
        model.cpu()


_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_sum_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
# names since torch 2.13, and earlier ones


def gather_tokens(
    hidden: Float[Tensor, "1 share width"], group: dist.ProcessGroup, partial: bool = True
) -> Float[Tensor, "1 tokens width"]:
    """All-gather of tokens. partial: gradients of the result are partial sums; otherwise they are equal on all processes."""
    return _GatherTokens.apply(hidden, group, partial)


def scatter_tokens(
    hidden: Float[Tensor, "1 tokens width"], group: dist.ProcessGroup, partial: bool = True
) -> Float[Tensor, "1 share width"]:
    """This process's tokens: of the sum over processes if `partial` (reduce-scatter), else of a replicated tensor."""
    return _ScatterTokens.apply(hidden, group, partial)


def exchange_rows(
    rows: Float[Tensor, "rows width"], sent: list[int], received: list[int], group: dist.ProcessGroup
) -> Float[Tensor, "received width"]:
    """All-to-all: sent[p] rows go to process p, received[p] rows come from it, in order. Every process takes part in the
    backward pass, also if nothing there needs a gradient."""
    anchor = torch.zeros((), device=rows.device, requires_grad=torch.is_grad_enabled())
    return _ExchangeRows.apply(rows, anchor, sent, received, group)


def tokens_to_heads(
    stream: Float[Tensor, "1 heads share head_dim"], group: dist.ProcessGroup
) -> Float[Tensor, "1 heads_share tokens head_dim"]:
    """All-to-all from some tokens of all heads to all tokens of some heads (DeepSpeed Ulysses, arXiv 2309.14509)."""
    return _Moved.apply(stream, group, _to_heads, _to_tokens)


def heads_to_tokens(
    stream: Float[Tensor, "1 heads_share tokens head_dim"], group: dist.ProcessGroup
) -> Float[Tensor, "1 heads share head_dim"]:
    """The inverse of tokens_to_heads."""
    return _Moved.apply(stream, group, _to_tokens, _to_heads)


class _GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, group: dist.ProcessGroup, partial: bool) -> Tensor:
        ctx.group, ctx.partial = group, partial
        return _gather(hidden, group)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return (_reduce_scatter if ctx.partial else _own)(gradient, ctx.group), None, None


class _ScatterTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, group: dist.ProcessGroup, partial: bool) -> Tensor:
        ctx.group, ctx.partial = group, partial
        return (_reduce_scatter if partial else _own)(hidden, group)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        if ctx.partial:
            return _gather(gradient, ctx.group), None, None
        # only this process's tokens; the other processes add theirs where partial sums are reduced
        size, share = dist.get_world_size(ctx.group), gradient.shape[1]
        whole = gradient.new_zeros(1, share * size, *gradient.shape[2:])
        whole.narrow(1, dist.get_rank(ctx.group) * share, share).copy_(gradient)
        return whole, None, None


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: Tensor, anchor: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup):
        ctx.splits, ctx.group = (sent, received), group
        return _all_to_all(rows, sent, received, group)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        sent, received = ctx.splits
        return _all_to_all(gradient, received, sent, ctx.group), None, None, None, None


Move = Callable[[Tensor, dist.ProcessGroup], Tensor]


class _Moved(torch.autograd.Function):
    """Applies the collective `there`; the gradient goes through its inverse `back`."""

    @staticmethod
    def forward(ctx, stream: Tensor, group: dist.ProcessGroup, there: Move, back: Move) -> Tensor:
        ctx.group, ctx.back = group, back
        return there(stream, group)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return ctx.back(gradient, ctx.group), None, None, None


def _gather(hidden: Tensor, group: dist.ProcessGroup) -> Tensor:
    size = dist.get_world_size(group)
    whole = hidden.new_empty(hidden.shape[1] * size, *hidden.shape[2:])
    _all_gather(whole, hidden[0].contiguous(), group=group)
    return whole[None]


def _reduce_scatter(hidden: Tensor, group: dist.ProcessGroup) -> Tensor:
    share = hidden.new_empty(hidden.shape[1] // dist.get_world_size(group), *hidden.shape[2:])
    _sum_scatter(share, hidden[0].contiguous(), group=group)
    return share[None]


def _own(hidden: Tensor, group: dist.ProcessGroup) -> Tensor:
    return hidden.chunk(dist.get_world_size(group), dim=1)[dist.get_rank(group)].contiguous()


def _all_to_all(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
    return arrived


def _to_heads(stream: Tensor, group: dist.ProcessGroup) -> Tensor:
    size = dist.get_world_size(group)
    _, heads, share, width = stream.shape
    leaving = stream.reshape(size, heads // size, share, width).contiguous()
    arrived = torch.empty_like(leaving)
    dist.all_to_all_single(arrived, leaving, group=group)
    return arrived.transpose(0, 1).reshape(1, heads // size, size * share, width)


def _to_tokens(stream: Tensor, group: dist.ProcessGroup) -> Tensor:
    size = dist.get_world_size(group)
    _, heads, tokens, width = stream.shape
    leaving = stream.reshape(heads, size, tokens // size, width).transpose(0, 1).contiguous()
    arrived = torch.empty_like(leaving)
    dist.all_to_all_single(arrived, leaving, group=group)
    return arrived.reshape(1, size * heads, tokens // size, width)

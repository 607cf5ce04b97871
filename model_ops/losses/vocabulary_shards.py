"""Losses with a vocabulary that is sharded over processes: each process computes the logits of its own token ids.

    head, shard = local_head(Head.of(model))               # shard: None if the head is not sharded
    rows = cut_cross_entropy_rows(labels, weights, 0.0, None, shard)  # a RowsLoss for chunked_head, with the head's local part

Processes exchange three numbers per row: the maximum, the sum of exponentials and the label's logit (vocabulary parallel cross
entropy of Megatron-LM, arXiv 1909.08053). The gradient of the local logits needs no further exchange.
"""

from dataclasses import dataclass, replace
from typing import overload

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from model_ops.losses.head import Head, RowsLoss


@dataclass(frozen=True, eq=False)
class VocabularyShard:
    """This process's part of the vocabulary: token ids [start, start + size)."""

    group: dist.ProcessGroup
    start: int
    size: int

    def logsumexp(self, logits: Float[Tensor, "rows size"]) -> tuple[Float[Tensor, " rows"], Float[Tensor, " rows"]]:
        """(logsumexp, highest logit) over the whole vocabulary."""
        top = logits.amax(-1)
        dist.all_reduce(top, dist.ReduceOp.MAX, group=self.group)
        total = (logits - top[:, None]).exp_().sum(-1)
        dist.all_reduce(total, group=self.group)
        return total.log_().add_(top), top

    def sum(self, values: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        """The sum over processes, in place."""
        dist.all_reduce(values, group=self.group)
        return values

    def places(self, labels: Int[Tensor, " rows"]) -> tuple[Int[Tensor, " rows"], Tensor]:
        """(index of each label in the local logits, mask of the labels that this process holds)."""
        held = (labels >= self.start) & (labels < self.start + self.size)
        return (labels - self.start).masked_fill(~held, 0), held


@overload
def local_head(head: Head) -> tuple[Head, VocabularyShard | None]: ...
@overload
def local_head(head: Head | None) -> tuple[Head | None, VocabularyShard | None]: ...
def local_head(head: Head | None) -> tuple[Head | None, VocabularyShard | None]:
    """(head, None) if the head is not sharded; otherwise (this process's rows of it, their token ids)."""
    if head is None or not isinstance(head.weight, DTensor):
        return head, None
    weight, shard = _local(head.weight)
    bias = None if head.bias is None else _local(head.bias)[0]
    return replace(head, weight=weight, bias=bias), shard


def _local(weight: DTensor) -> tuple[Tensor, VocabularyShard | None]:
    over, placement = weight.device_mesh, weight.placements[-1]
    if placement.is_shard():
        part = weight.to_local(grad_placements=weight.placements)
        return part, VocabularyShard(over.get_group(), over.get_local_rank() * len(part), len(part))
    # Every process computes the whole loss, so each contributes its share to gradients of replicated tensors.
    part = weight.to_local(grad_placements=[Partial()] * len(weight.placements))
    return _Share.apply(part, over.size()), None


def cut_cross_entropy_rows(
    labels: Int[Tensor, " rows"],
    weights: Float[Tensor, " rows"],
    z_loss: float,
    hits: Float[Tensor, " rows"] | None,
    shard: VocabularyShard,
) -> RowsLoss:
    """`linear_cross_entropy.cross_entropy_rows` with logits of the shard's tokens only."""

    def rows(logits: Tensor, where: slice, gradient_wanted: bool) -> tuple[Tensor, Tensor | None]:
        weight = weights[where]
        place, held = shard.places(labels[where])
        lse, top = shard.logsumexp(logits)
        of_label = shard.sum(logits.gather(1, place[:, None])[:, 0].masked_fill_(~held, 0))
        if hits is not None:
            hits[where] = (of_label >= top).float()
        losses = (lse - of_label + z_loss * lse.square()) * weight
        if not gradient_wanted:
            return losses, None
        gradient = logits.sub_(lse[:, None]).exp_().mul_((1 + 2 * z_loss * lse)[:, None])
        gradient.scatter_add_(1, place[:, None], -held[:, None].to(gradient.dtype))
        return losses, gradient.mul_(weight[:, None])

    return rows


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight: Tensor, size: int) -> Tensor:
        ctx.size = size
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient / ctx.size, None


def row_multiple(model: nn.Module) -> int:
    """The number that a row's token count must be a multiple of: the number of processes under sequence parallelism."""
    weight = model.get_input_embeddings().weight
    if not isinstance(weight, DTensor) or "tp" not in weight.device_mesh.mesh_dim_names:
        return 1
    return weight.device_mesh.size(weight.device_mesh.mesh_dim_names.index("tp"))

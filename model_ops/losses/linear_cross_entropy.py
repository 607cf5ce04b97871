"""Cross-entropy at a model's head for positions with a label: logsumexp(h W^T) - h W_y, its gradient softmax - onehot, z-loss z
* logsumexp^2 (PaLM, arXiv 2204.02311, section 5). Over a sharded vocabulary processes exchange three numbers per row: maximum,
sum of exponentials and the label's logit (Megatron-LM, arXiv 1909.08053)."""

from dataclasses import dataclass, replace
from typing import overload

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from model_ops.losses.head import Head, RowsLoss, chunked_rows
from model_ops.parallel import pad
from model_ops.tensors import IGNORED, Batch, fused_rows


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


@torch.no_grad()
def token_nll(
    model: nn.Module, batch: Batch, temperature: float = 1.0
) -> tuple[Float[Tensor, " targets"], Int[Tensor, " targets"]]:
    """Negative log-likelihood of each label in nats, and the positions that have one."""
    log_probs, places = label_log_probs(model, batch, temperature=temperature)
    return -log_probs, places


def label_log_probs(
    model: nn.Module, batch: Batch, temperature: float = 1.0
) -> tuple[Float[Tensor, " targets"], Int[Tensor, " targets"]]:
    """Log-probability of each label in nats, differentiable, and the positions that have one. temperature: divides logits."""
    places = (batch.labels != IGNORED).nonzero()[:, 0]
    labels = batch.labels[places]
    head, shard = local_head(Head.of(model))
    if head is None:
        logits = model(**batch.model_inputs, logits_to_keep=places).logits[0].float() / temperature
        log_p = torch.log_softmax(logits, -1)
        return log_p.gather(1, labels[:, None])[:, 0], places

    def weighted(weights: Tensor) -> RowsLoss:
        return cross_entropy_rows(labels, weights, shard=shard)

    return -chunked_rows(last_hidden(model, batch)[places], head.cooled(temperature), weighted), places


def last_hidden(model: nn.Module, batch: Batch) -> Float[Tensor, "tokens hidden"]:
    """The input of the head, for a model loaded with attention="packed"."""
    padded = pad(batch, row_multiple(model))
    hidden = model.base_model(**padded.model_inputs).last_hidden_state[0]
    return hidden if padded is batch else hidden[: batch.tokens]


def cross_entropy_rows(
    labels: Int[Tensor, " rows"],
    weights: Float[Tensor, " rows"],
    z_loss: float = 0.0,
    hits: Float[Tensor, " rows"] | None = None,
    shard: VocabularyShard | None = None,
) -> RowsLoss:
    """(cross-entropy + z_loss * log-normaliser^2) * weight of each row. hits: receives 1 if the label has the highest logit,
    else 0. shard: the vocabulary is sharded, and logits are of its tokens."""
    if shard is not None:
        return cut_cross_entropy_rows(labels, weights, z_loss, hits, shard)

    return CrossEntropyRows(labels, weights, z_loss, hits)


class CrossEntropyRows:
    """The rows' loss of a whole vocabulary."""

    def __init__(
        self, labels: Int[Tensor, " rows"], weights: Float[Tensor, " rows"], z_loss: float, hits: Float[Tensor, " rows"] | None
    ):
        self._labels, self._weights, self._z_loss, self._hits = labels, weights, z_loss, hits

    def in_place(self, logits: Tensor, where: slice, gradient_wanted: bool) -> Tensor:
        """Losses of the rows. Overwrites the logits, of any dtype that fused_rows takes, with their gradient."""
        losses, hits = fused_rows.cross_entropy(
            logits, self._labels[where].contiguous(), self._weights[where].contiguous(), self._z_loss, gradient_wanted
        )
        if self._hits is not None:
            self._hits[where] = hits
        return losses

    def __call__(self, logits: Tensor, where: slice, gradient_wanted: bool) -> tuple[Tensor, Tensor | None]:
        label, weight, z_loss = self._labels[where, None], self._weights[where], self._z_loss
        chosen = logits.gather(1, label)[:, 0]
        highest = logits.amax(-1)
        if self._hits is not None:
            self._hits[where] = (chosen >= highest).float()
        exponentials = logits.sub_(highest[:, None]).exp_()
        sums = exponentials.sum(-1)
        normaliser = sums.log() + highest
        losses = (normaliser - chosen + z_loss * normaliser.square()) * weight
        if not gradient_wanted:
            return losses, None
        softmax_weight = weight * (1 + 2 * z_loss * normaliser)
        gradient = exponentials.mul_((softmax_weight / sums)[:, None])
        return losses, gradient.scatter_add_(1, label, -weight[:, None])

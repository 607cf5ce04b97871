"""Distillation loss: KL divergence of a student from its teacher, mixed with cross-entropy of the labels.

    loss = distillation_loss(teacher, temperature=1.0, label_weight=0.0)             # a model_ops.loss.Loss
    loss = distillation_loss(teacher, temperature=1.0, label_weight=0.0, world=world)   # a teacher that world.place sharded

The loss of a token is (1 - label_weight) T^2 KL(teacher || student) at temperature T + label_weight cross-entropy (Hinton et
al., arXiv 1503.02531). Reads the streams labels and weights; logs kl, the plain divergence.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from model_ops.batch import IGNORED, Batch
from model_ops.errors import ModelError
from model_ops.loss import Loss, LossOutput, one_term
from model_ops.losses.chunked_head import Head, RowsLoss, chunked_head
from model_ops.losses.linear_cross_entropy import last_hidden
from model_ops.losses.vocabulary_shards import VocabularyShard, local_head
from model_ops.parallel.world import World


def distillation_loss(teacher: PreTrainedModel, temperature: float, label_weight: float, world: World | None = None) -> Loss:
    """The loss for the trainer. world: over which the teacher is sharded, as the student is; None: one process. Raises
    ModelError if the teacher's head is not a linear layer."""
    if Head.of(teacher) is None:
        raise ModelError(f"{type(teacher).__name__} has a head that is not a linear layer and cannot be distilled; "
                         "choose another base model")
    teacher.eval()
    world = world or World.alone(next(teacher.parameters()).device)

    def teach(batch: Batch, kept: Tensor) -> tuple[Tensor, Head, VocabularyShard | None]:
        """The teacher's last states at the kept positions and its head, which outlive its gathered weights."""
        kind = batch.labels.device.type
        products = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else teacher.dtype
        taught = last_hidden(teacher, batch)[kept].to(products)
        head, shard = local_head(Head.of(teacher))
        gathered = world.mesh is not None
        bias = head.bias.clone() if gathered and head.bias is not None else head.bias
        return taught, replace(head, weight=head.weight.to(products, copy=gathered), bias=bias), shard

    def loss(student: nn.Module, batch: Batch) -> LossOutput:
        kept = (batch.labels != IGNORED).nonzero()[:, 0]
        with torch.no_grad():
            taught, head, taught_shard = world.evaluate(teacher, lambda: teach(batch, kept))
        divergences = torch.zeros(len(kept), device=taught.device)
        learning, shard = local_head(Head.of(student))
        if shard is not None and taught_shard is None:
            head = head.rows(shard.start, shard.size)
        rows = distillation_rows(
            taught, head, batch.labels[kept], batch.weights[kept], temperature, label_weight,
            divergences, shard,
        )
        total, _ = chunked_head(last_hidden(student, batch)[kept], learning, rows)
        weights = batch.weights[kept]
        return one_term(total, weights.sum(), {"kl": (divergences * weights).sum()})

    return loss


def distillation_rows(
    taught: Float[Tensor, "rows teacher_hidden"], teacher_head: Head,
    labels: Int[Tensor, " rows"], weights: Float[Tensor, " rows"], temperature: float, label_weight: float,
    divergences: Float[Tensor, " rows"], shard: VocabularyShard | None = None,
) -> RowsLoss:
    """(1 - label_weight) T^2 KL(teacher || student) + label_weight cross-entropy of each row, times the row's weight.

    The teacher's logits exist for one chunk of rows at a time. `divergences` receives the plain KL of each row. With a
    `shard`, both heads are cut over processes and these are the logits of its tokens.
    """

    def log_softmax(logits: Tensor) -> Tensor:
        return torch.log_softmax(logits, -1) if shard is None else logits - shard.logsumexp(logits)[0][:, None]

    def rows(logits: Tensor, where: slice, gradient_wanted: bool) -> tuple[Tensor, Tensor | None]:
        teacher_logits = teacher_head.logits(taught[where])
        wanted = log_softmax(teacher_logits.div_(temperature))
        given = log_softmax(logits / temperature)
        wanted_probability = wanted.exp()
        divergence = (wanted_probability * (wanted - given)).sum(-1)
        divergences[where] = divergence if shard is None else shard.sum(divergence)
        share = (1 - label_weight) * temperature**2
        losses = share * divergences[where]
        gradient = (given.exp() - wanted_probability).mul_(share / temperature) if gradient_wanted else None
        if label_weight > 0:
            plain = log_softmax(logits)
            if shard is None:
                label, held = labels[where, None], torch.ones_like(labels[where, None], dtype=torch.bool)
                of_label = plain.gather(1, label)[:, 0]
            else:
                label, held = (values[:, None] for values in shard.places(labels[where]))
                of_label = shard.sum(plain.gather(1, label).masked_fill(~held, 0)[:, 0])
            losses = losses - label_weight * of_label
            if gradient is not None:
                gradient.add_(plain.exp(), alpha=label_weight)
                gradient.scatter_add_(1, label, held.to(gradient.dtype).mul_(-label_weight))
        weight = weights[where]
        return losses * weight, None if gradient is None else gradient.mul_(weight[:, None])

    return rows

"""Distillation loss: divergence of a student from its teacher, mixed with cross-entropy of the labels.

    loss = distillation_loss(teacher, Divergence(), of_samples=Divergence(beta=1))  # a model_ops.tensors.loss.Loss

The loss of a token is (1 - label_weight) T^2 D(teacher, student) at temperature T (Hinton et al., arXiv 1503.02531) +
label_weight cross-entropy, D the divergence at `beta` (`divergences.py`). Answers that the student sampled (SampledBatch) have
a divergence of their own. Logs kl, the plain divergence of rows from the dataset, and sampled_kl, that of sampled ones.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from model_ops.losses import Head, RowsLoss, VocabularyShard, chunked_head, last_hidden, local_head
from model_ops.objectives.divergences import generalised_jsd, whole
from model_ops.objectives.on_policy import SampledBatch
from model_ops.objectives.teacher_cache import CachedBatch, DrawnBatch, cached_rows
from model_ops.parallel import World
from model_ops.tensors import IGNORED, Batch, Loss, LossOutput, Mean


@dataclass(frozen=True)
class Divergence:
    """The loss of a token: (1 - label_weight) T^2 D at beta + label_weight cross-entropy."""

    temperature: float = 1.0
    label_weight: float = 0.0
    beta: float = 0.0


def distillation_loss(
    teacher: PreTrainedModel | None, of_rows: Divergence, of_samples: Divergence | None = None, world: World | None = None
) -> Loss[Batch]:
    """The loss for the trainer. A CachedBatch brings what the teacher says; for any other batch the teacher is asked.

    teacher: None where all batches are cached. of_samples: for answers that the student sampled; None: there are none. world:
    over which the teacher is sharded, as the student is; None: one process. Raises ModelError if the teacher's head is not a
    linear layer."""
    asked = None if teacher is None else _AskedTeacher(teacher, world or World.alone(next(teacher.parameters()).device))

    def loss(student: nn.Module, batch: Batch) -> LossOutput:
        sampled = isinstance(batch, SampledBatch)
        places = (batch.labels != IGNORED).nonzero()[:, 0]
        divergences = torch.zeros(len(places), device=batch.labels.device)
        learning, shard = local_head(Head.required(student))
        labels, weights = batch.labels[places], batch.weights[places]
        if isinstance(batch, CachedBatch):
            masses = batch.teacher_masses[places] if isinstance(batch, DrawnBatch) else None
            rows = cached_rows(
                batch.teacher_ids[places],
                batch.teacher_logs[places],
                masses,
                labels,
                weights,
                of_rows.temperature,
                of_rows.label_weight,
                of_rows.beta,
                divergences,
            )
        elif asked is None:
            raise ValueError("a batch without the teacher's distributions needs a teacher")
        else:
            taught, head, taught_shard = asked.states(batch, places)
            if shard is not None and taught_shard is None:
                head = head.rows(shard.start, shard.size)
            wanted = of_samples if sampled and of_samples is not None else of_rows
            rows = distillation_rows(taught, head, labels, weights, wanted, divergences, shard)
        total, _ = chunked_head(last_hidden(student, batch)[places], learning, rows)
        count, weighted = weights.sum(), (divergences * weights).sum()
        metrics = {"kl": Mean(weighted * (not sampled), count * (not sampled))}
        if of_samples is not None:
            metrics["sampled_kl"] = Mean(weighted * sampled, count * sampled)
        return LossOutput({"loss": Mean(total, count)}, metrics)

    return loss


class _AskedTeacher:
    """A teacher that computes with each batch."""

    def __init__(self, model: PreTrainedModel, world: World):
        Head.required(model)
        self._model, self._world = model.eval(), world

    @torch.no_grad()
    def states(self, batch: Batch, places: Tensor) -> tuple[Tensor, Head, VocabularyShard | None]:
        """The teacher's last states at these positions and its head, which outlive its gathered weights."""
        return self._world.evaluate(self._model, lambda: self._states(batch, places))

    def _states(self, batch: Batch, places: Tensor) -> tuple[Tensor, Head, VocabularyShard | None]:
        kind, gathered = batch.labels.device.type, self._world.mesh is not None
        products = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self._model.dtype
        taught = last_hidden(self._model, batch)[places].to(products)
        head, shard = local_head(Head.required(self._model))
        bias = head.bias.clone() if gathered and head.bias is not None else head.bias
        return taught, replace(head, weight=head.weight.to(products, copy=gathered), bias=bias), shard


def distillation_rows(
    taught: Float[Tensor, "rows teacher_hidden"],
    teacher_head: Head,
    labels: Int[Tensor, " rows"],
    weights: Float[Tensor, " rows"],
    wanted: Divergence,
    divergences: Float[Tensor, " rows"],
    shard: VocabularyShard | None = None,
) -> RowsLoss:
    """The loss of each row, times the row's weight.

    The teacher's logits exist for one chunk of rows at a time. `divergences` receives the plain divergence of each row. With a
    `shard`, both heads are cut over processes and these are the logits of its tokens.
    """
    temperature, label_weight = wanted.temperature, wanted.label_weight

    def total(values: Tensor) -> Tensor:
        return whole(values) if shard is None else shard.sum(values.sum(-1))

    def log_teacher(where: slice, log_q: Tensor) -> Tensor:
        of_teacher = teacher_head.logits(taught[where]).div_(temperature)
        if shard is None and of_teacher.shape[1] != log_q.shape[1]:
            missing = log_q.shape[1] - of_teacher.shape[1]  # a negative pad cuts
            of_teacher = nn.functional.pad(of_teacher, (0, missing), value=-math.inf)
        return _log_softmax(of_teacher, shard)

    def rows(logits: Tensor, where: slice, gradient_wanted: bool) -> tuple[Tensor, Tensor | None]:
        log_q = _log_softmax(logits / temperature, shard)
        log_p = log_teacher(where, log_q)
        divergences[where], gradient = generalised_jsd(log_p, log_q, wanted.beta, gradient_wanted, total)
        share = (1 - label_weight) * temperature**2
        losses = share * divergences[where]
        if gradient is not None:
            gradient.mul_(share / temperature)
        if label_weight > 0:
            plain = _log_softmax(logits, shard)
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


def _log_softmax(logits: Tensor, shard: VocabularyShard | None) -> Tensor:
    return torch.log_softmax(logits, -1) if shard is None else logits - shard.logsumexp(logits)[0][:, None]

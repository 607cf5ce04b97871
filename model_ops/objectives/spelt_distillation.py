"""Distillation across tokenizers: divergence from the teacher's distribution as the student spells it.

    plan = PairedPlan(paired, settings, spelling)                  # batches with the teacher's tokens of the same answers
    loss = spelt_distillation_loss(teacher, spelling, Divergence())

Where model_ops.objectives.spelling knows what the teacher says of the student's next token, the loss is that of ordinary
distillation (model_ops.objectives.distillation), and the teacher's next distributions and then the label decide between tokens
that its first one leaves open (model_ops.objectives.prefix_tree). With one tokenizer that is everywhere, and nothing is open.
Other tokens learn their labels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from model_ops.losses import Head, chunked_head, cross_entropy_rows, last_hidden, products
from model_ops.objectives.distillation import Divergence, divergence_rows, refuse_unusual_head
from model_ops.objectives.paired_batches import PairedBatch
from model_ops.objectives.spelling import Spelling
from model_ops.tensors import IGNORED, Loss, LossOutput, Mean


def spelt_distillation_loss(teacher: PreTrainedModel, spelling: Spelling, wanted: Divergence) -> Loss:
    """The loss for the trainer, per label, in one process.

    Logs `kl`, the plain divergence at the places that are compared, and `aligned`, their share of the labels. Raises
    ModelError if the teacher's head is not a linear layer."""
    refuse_unusual_head(teacher)
    teacher.eval()
    spelling = spelling.to(next(teacher.parameters()).device)

    def loss(student: nn.Module, batch: PairedBatch) -> LossOutput:
        labels, places = batch.labels, batch.places
        hidden, head = last_hidden(student, batch), Head.of(student)
        divergences = torch.zeros(len(places.ours), device=labels.device)
        total, rest = hidden.sum() * 0.0, labels != IGNORED
        if len(places.ours):
            with torch.no_grad():
                teacher_head = Head.of(teacher)
                taught = products(last_hidden(teacher, batch.teacher), teacher_head)

            def log_teacher(where: slice, log_q: Tensor) -> Tensor:
                part = places.part(where)
                p = torch.softmax(teacher_head.logits(taught[part.theirs]) / wanted.temperature, -1)
                return spelling.spelt(p, part, log_q.exp()).log_()

            divergence = divergence_rows(log_teacher, labels[places.ours], batch.weights[places.ours], wanted, divergences)

            def rows(logits: Tensor, where: slice, gradient_wanted: bool) -> tuple[Tensor, Tensor | None]:
                losses, gradient = divergence(logits, where, gradient_wanted)
                part = places.part(where)
                share = batch.weights[places.ours[where]] * (1 - wanted.label_weight) * wanted.temperature
                p = torch.softmax(teacher_head.logits(taught[part.paths.theirs]) / wanted.temperature, -1)
                more, change = spelling.tree.going_on(torch.softmax(logits / wanted.temperature, -1), p, part.paths, part.said)
                if gradient is not None:
                    gradient.add_(change.mul_(share[:, None]))
                losses = losses + more * share * wanted.temperature
                return losses, gradient

            total = total + chunked_head(hidden[places.ours], head, rows)[0]
            rest = rest.index_fill(0, places.ours, False)
        learnt = rest.nonzero()[:, 0]
        if len(learnt):
            total = total + chunked_head(hidden[learnt], head, cross_entropy_rows(labels[learnt], batch.weights[learnt]))[0]
        weights = batch.weights[places.ours]
        count = batch.weights[labels != IGNORED].sum()
        return LossOutput(
            {"loss": Mean(total, count)},
            {"kl": Mean((divergences * weights).sum(), weights.sum()), "aligned": Mean(weights.sum(), count)},
        )

    return loss

"""A shallower student of a teacher: some of its layers, then taught to give its probabilities.

Job inputs: `teacher` (a model directory), `dataset`. Output: the student as a model directory of its own.

The student takes evenly spaced layers of the teacher, the first and the last always, with their weights; everything
else is the teacher's. It then minimises KL(teacher || student) on assistant tokens, both at `temperature` and scaled by
its square (Hinton et al., arXiv 1503.02531), mixed with plain cross-entropy by `label_weight`. label_weight=1 is plain
SFT of the same student on the same rows in the same order: the control that distillation has to beat.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from model_ops.batch import IGNORED, Batch
from model_ops.errors import ModelError
from model_ops.job import Job
from model_ops.loss import LossOutput, one_term
from model_ops.losses.chunked_head import Head, RowsLoss, chunked_head
from model_ops.losses.linear_cross_entropy import last_hidden, next_token_loss
from model_ops.losses.vocabulary_shards import VocabularyShard, local_head
from model_ops.models.end_of_text import add_end_of_text
from model_ops.models.model_directory import load_model, save_model
from model_ops.models.shallower import make_student, student_layers
from model_ops.operations.distill_settings import StudentSettings
from model_ops.parallel.world import World
from model_ops.progress import Progress
from model_ops.training.chats import read_chats, validation_of
from model_ops.training.conversations import end_of_turn_ids
from model_ops.training.packing import PackedPlan
from model_ops.training.trainer import train


def run(job: Job, progress: Progress) -> dict[str, float | int | list[int]]:
    """Makes the student, teaches it, saves it. Raises ModelError for a wrong teacher or dataset, before weights are loaded."""
    settings = job.settings_as(StudentSettings)
    place = job.input("teacher")
    world = World.start(settings.mesh)
    chats = read_chats(job.input("dataset"), place, settings)
    teacher = load_model(place, device=world.device if world.size == 1 else "cpu").requires_grad_(False)
    layers = student_layers(teacher.config.num_hidden_layers, settings.layers)
    student = make_student(teacher, layers)
    world.place(student, settings.precision)
    teacher.to(world.device)  # whole on every process: it is only read
    result = train(
        student, PackedPlan(chats.documents, settings),
        next_token_loss if settings.label_weight == 1 else distillation_loss(teacher, settings),
        settings, job.output / ".work", progress, "distill",
        validate=validation_of(student, chats.validation, settings.precision), world=world,
    )
    add_end_of_text(student, end_of_turn_ids(chats.tokenizer))
    save_model(student, chats.tokenizer, job.output)
    return {**result.metrics(chats.counts), "teacher_layers": layers}


def distillation_loss(teacher: PreTrainedModel, settings: StudentSettings):
    """The trainer's loss: divergence from `teacher` on assistant tokens, mixed with cross-entropy."""
    if Head.of(teacher) is None:
        raise ModelError(f"{type(teacher).__name__} has a head that is no linear layer; it cannot be distilled")
    teacher.eval()

    def loss(student: nn.Module, batch: Batch) -> LossOutput:
        kept = (batch.labels != IGNORED).nonzero()[:, 0]
        with torch.no_grad():
            kind = batch.labels.device.type
            products = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else teacher.dtype
            taught = last_hidden(teacher, batch)[kept].to(products)
            head = Head.of(teacher)
            head = replace(head, weight=head.weight.to(products))
        divergences = torch.zeros(len(kept), device=taught.device)
        learning, shard = local_head(Head.of(student))
        if shard is not None:
            head = head.rows(shard.start, shard.size)
        rows = distillation_rows(
            taught, head, batch.labels[kept], batch.weights[kept], settings.temperature, settings.label_weight,
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
    """(1 - label_weight) T^2 KL(teacher || student) + label_weight cross-entropy, of each row times its weight.

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

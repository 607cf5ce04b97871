"""Distillation loss of a token: (1 - label_weight) T^2 D(teacher, student) at temperature T (arXiv 1503.02531) + label_weight
cross-entropy, D the divergence at `beta` (`divergences.py`). Answers that the student sampled while it trains (SampledBatch)
have a divergence of their own, logged as sampled_kl."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from model_ops.answers import Engine, Tokens
from model_ops.documents import Document, PackedPlan, to_batches
from model_ops.losses import Head, RowsLoss, VocabularyShard, chunked_head, last_hidden, local_head
from model_ops.objectives.divergences import generalised_jsd, whole
from model_ops.objectives.on_policy_settings import OnPolicySettings
from model_ops.objectives.teacher_cache import CachedBatch, DrawnBatch, cached_rows
from model_ops.parallel import World
from model_ops.tensors import IGNORED, Batch, Loss, LossOutput, Mean


@dataclass(frozen=True)
class SampledBatch(Batch):
    """A batch of answers that the student sampled: they show where to teach, not what to say."""


class OnPolicyPlan:
    """A plan of packed documents, some of whose steps hold the student's own answers. longest: tokens of prompt and answer."""

    def __init__(self, plan: PackedPlan, engine: Engine, settings: OnPolicySettings, longest: int):
        self.plan, self.engine, self.settings, self.longest = plan, engine, settings, longest
        self._sampled = sampled_steps(len(plan), settings, plan.seed)

    def __len__(self) -> int:
        return len(self.plan)

    def step(self, index: int, rank: int = 0, ranks: int = 1) -> Sequence[Batch]:
        """The plan's own micro-batches, or those of the student's answers."""
        if index not in self._sampled:
            return self.plan.step(index, rank, ranks)
        generator = np.random.default_rng((self.plan.seed, index, 2))
        asked = [
            drawn
            for drawn in (drawn_prompt(document, generator) for document in self.plan.documents_of(index))
            if drawn is not None and len(drawn) < self.longest
        ]
        names = [f"{index}:{place}" for place in range(len(asked))]
        self.engine.sync(index)
        answers = self.engine.sample(asked, names, self.plan.seed)
        documents = [
            answered(name, prompt, answer.tokens[: self.longest - len(prompt)])
            for name, prompt, answer in zip(names, asked, answers, strict=True)
        ]
        if not documents:
            return self.plan.step(index, rank, ranks)
        return to_batches(documents, self.plan.micro_batch_tokens, kind=SampledBatch)

    def heaviest(self, rank: int = 0, ranks: int = 1) -> Batch:
        """The plan's heaviest micro-batch; sampled ones are cut at the same number of tokens."""
        return self.plan.heaviest(rank, ranks)

    def state(self) -> dict[str, Any]:
        """Nothing: a step follows from its index and the student's weights."""
        return {}

    def resume(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


def sampled_steps(steps: int, settings: OnPolicySettings, seed: int) -> frozenset[int]:
    """The steps that the student answers: of those after `after`, each with probability `share`."""
    first = round(steps * settings.after)
    drawn = np.random.default_rng((seed, 3)).random(steps)
    return frozenset(index for index in range(first, steps) if drawn[index] < settings.share)


def drawn_prompt(document: Document, generator: np.random.Generator) -> Int[np.ndarray, " tokens"] | None:
    """The tokens before one of the document's answers; None if it has none."""
    starts = list(answer_starts(document))
    if not starts:
        return None
    at, begin, stop = starts[int(generator.integers(len(starts)))]
    return np.concatenate([document.input_ids[:at], document.input_ids[begin:stop]])


def answer_starts(document: Document) -> Iterator[tuple[int, int, int]]:
    """For each answer (a run of targets): (tokens of the trunk before its segment, first token of the segment, first of the
    answer)."""
    begin = 0
    for at, length in document.segments:
        targets = document.targets[begin : begin + length]
        for place in np.flatnonzero(targets[1:] & ~targets[:-1]) + 1:
            yield at, begin, begin + int(place)
        begin += length


def answered(name: str, prompt: Int[np.ndarray, " tokens"], answer: Tokens) -> Document:
    """The document of a prompt and its sampled answer, whose tokens are the targets."""
    ids = np.concatenate([prompt, answer.astype(prompt.dtype)])
    return Document(name, ids, np.arange(len(ids)) >= len(prompt))


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
    teacher: None where all batches are cached. of_samples: for answers that the student sampled; None: there are none.
    world: over which the teacher is sharded, as the student is; None: one process. Raises ModelError if the teacher's head
    is not a linear layer."""
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
    """The loss of each row, times the row's weight. The teacher's logits exist for one chunk of rows at a time. `divergences`
    receives the plain divergence of each row. With a `shard`, both heads are cut over processes and these are the logits of its
    tokens."""
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

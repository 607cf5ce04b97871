"""Distillation across tokenizers (GOLD; Patiño et al., "Unlocking On-Policy Distillation for Any Model Family", 2025).

    plan = PairedPlan(paired, settings)                            # batches with the teacher's tokens of the same answers
    loss = gold_loss(teacher, MatchedVocabulary.of(...), GoldDivergence(beta=0.5))

Answers are aligned by bytes (model_ops.training.answer_alignment). A group of k tokens says the same bytes in both
tokenisations. By the chain rule, its distribution is that at its LAST token times the probabilities of the earlier ones:

    P(v) = p(v | before the last) prod_{i<k} p(token_i | before i)

With P of the teacher and Q of the student, a group costs

    T^2 (matched_weight D(P, Q over tokens that both have) + (1 - matched_weight) |sorted P - sorted Q|_1 over the rest)

D is generalised_jsd at beta; the second term is ULD (arXiv 2402.12030), with zeros for the shorter list. TRL's GOLDTrainer has
this form with uld_token_merge_strategy="bayesian". Tokens of the student in no group learn their labels.
model_ops.objectives.spelling compares more of what the teacher says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from model_ops.batch import IGNORED
from model_ops.loss import Loss, LossOutput, Mean
from model_ops.losses.chunked_head import Head, RowsLoss, chunked_head, products
from model_ops.losses.linear_cross_entropy import cross_entropy_rows, last_hidden
from model_ops.objectives.distillation import refuse_unusual_head
from model_ops.objectives.divergences import LEAST_LOG, generalised_jsd
from model_ops.objectives.paired_batches import PairedBatch

ROWS_AT_ONCE = 256
"""Earlier tokens of groups whose probabilities are computed at once."""

@dataclass(frozen=True)
class GoldDivergence:
    """Settings of the divergence."""

    temperature: float = 1.0
    label_weight: float = 0.0
    beta: float = 0.0
    matched_weight: float | None = None
    """None: the matched share of the teacher's vocabulary, as in TRL."""


@dataclass(frozen=True)
class MatchedVocabulary:
    """Ids of tokens that both vocabularies have, in the same order, and of the others of each."""

    student: Int[Tensor, " matched"]
    teacher: Int[Tensor, " matched"]
    student_rest: Int[Tensor, " student_rest"]
    teacher_rest: Int[Tensor, " teacher_rest"]

    @classmethod
    def of(cls, pairs: tuple[list[int], list[int]], student_ids: Sequence[int],
           teacher_ids: Sequence[int]) -> MatchedVocabulary:
        """pairs: ids of the student and of the teacher. student_ids, teacher_ids: all ids that stand for a token."""
        parts = (*pairs, sorted(set(student_ids) - set(pairs[0])), sorted(set(teacher_ids) - set(pairs[1])))
        return cls(*(torch.tensor(part, dtype=torch.int64) for part in parts))

    def to(self, device: torch.device) -> MatchedVocabulary:
        """The ids on a device."""
        parts = (self.student, self.teacher, self.student_rest, self.teacher_rest)
        return MatchedVocabulary(*(part.to(device) for part in parts))

    @property
    def share(self) -> float:
        """Share of the teacher's tokens that are matched."""
        return len(self.teacher) / max(1, len(self.teacher) + len(self.teacher_rest))


def gold_loss(teacher: PreTrainedModel, vocabulary: MatchedVocabulary, wanted: GoldDivergence) -> Loss:
    """The loss for the trainer, per group and per label in no group, in one process.

    Logs `gold`, the mean cost of a group, and `aligned`, the share of labels that are in a group. Raises ModelError if the
    teacher's head is not a linear layer."""
    refuse_unusual_head(teacher)
    teacher.eval()
    vocabulary = vocabulary.to(next(teacher.parameters()).device)

    def loss(student: nn.Module, batch: PairedBatch) -> LossOutput:
        labels, groups = batch.labels, batch.groups
        hidden, head = last_hidden(student, batch), Head.of(student)
        places = Places.between(groups[:, 0], groups[:, 1])
        costs = torch.zeros(len(groups), device=labels.device)
        total = hidden.sum() * 0.0
        if len(groups):
            with torch.no_grad():
                compared = _compared(teacher, hidden, head, places, batch, wanted.temperature)
            slopes = torch.zeros_like(costs)
            rows = gold_rows(compared, vocabulary, wanted, costs, slopes)
            total = total + chunked_head(hidden[groups[:, 1]], head, rows)[0]
            if len(places.earlier):
                chosen = _chosen_rows(batch.input_ids[places.earlier + 1], slopes[places.group], wanted.temperature)
                through = chunked_head(hidden[places.earlier], head, chosen)[0]
                total = total + through - through.detach()  # the gradient of the earlier factors, which the costs hold
        share = torch.ones_like(batch.weights)
        share[places.covered] = wanted.label_weight
        learnt = ((labels != IGNORED) & (share > 0)).nonzero()[:, 0]
        if len(learnt):
            total = total + chunked_head(hidden[learnt], head, cross_entropy_rows(labels[learnt], share[learnt]))[0]
        targets = (labels != IGNORED).sum().float()
        covered, compared_groups = (torch.tensor(float(len(each)), device=labels.device) for each in (places.covered, groups))
        return LossOutput({"loss": Mean(total, compared_groups + targets - covered)},
                          {"gold": Mean(costs.sum(), compared_groups), "aligned": Mean(covered, targets)})

    return loss


@dataclass(frozen=True)
class Places:
    """Positions of groups."""

    earlier: Int[Tensor, " earlier"]
    """Positions before each group's last."""
    group: Int[Tensor, " earlier"]
    """The group of each earlier position."""
    covered: Int[Tensor, " covered"]
    """All positions of groups."""

    @classmethod
    def between(cls, first: Int[Tensor, " groups"], last: Int[Tensor, " groups"]) -> Places:
        """first, last: positions of each group, included."""
        lengths = last - first + 1
        group = torch.repeat_interleave(torch.arange(len(first), device=first.device), lengths)
        begins = lengths.cumsum(0) - lengths
        covered = first[group] + torch.arange(len(group), device=first.device) - begins[group]
        is_earlier = covered < last[group]
        return cls(covered[is_earlier], group[is_earlier], covered)


@dataclass(frozen=True)
class Compared:
    """Teacher states and log-probabilities of groups."""

    taught: Float[Tensor, "groups teacher_hidden"]
    """The teacher's last states at each group's last position."""
    teacher_head: Head
    our_logs: Float[Tensor, " groups"]
    their_logs: Float[Tensor, " groups"]
    """our_logs, their_logs: log-probability of each group's earlier tokens."""


def _compared(teacher: PreTrainedModel, hidden: Tensor, head: Head, places: Places, batch: PairedBatch,
              temperature: float) -> Compared:
    groups, theirs = batch.groups, batch.teacher
    states, teacher_head = last_hidden(teacher, theirs), Head.of(teacher)
    there = Places.between(groups[:, 2], groups[:, 3])
    return Compared(
        products(states[groups[:, 3]], teacher_head), teacher_head,
        _earlier_logs(hidden, head, places, batch.input_ids, len(groups), temperature),
        _earlier_logs(states, teacher_head, there, theirs.input_ids, len(groups), temperature))


def _earlier_logs(hidden: Tensor, head: Head, places: Places, input_ids: Tensor, groups: int,
                  temperature: float) -> Float[Tensor, " groups"]:
    """Log-probability of the tokens before each group's last."""
    found = torch.zeros(groups, device=hidden.device)
    for first in range(0, len(places.earlier), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        at = places.earlier[part]
        logs = torch.log_softmax(head.logits(products(hidden[at], head)) / temperature, -1)
        found.index_add_(0, places.group[part], logs.gather(1, input_ids[at + 1][:, None])[:, 0])
    return found


def gold_rows(compared: Compared, vocabulary: MatchedVocabulary, wanted: GoldDivergence, costs: Float[Tensor, " groups"],
              slopes: Float[Tensor, " groups"]) -> RowsLoss:
    """The loss of each group from the student's logits at its last position.

    costs: receives each group's cost. slopes: receives d loss / d our_logs. The teacher's logits exist
    for a few rows at a time.
    """
    matched_weight = vocabulary.share if wanted.matched_weight is None else wanted.matched_weight
    scale = (1 - wanted.label_weight) * wanted.temperature**2

    def rows(logits: Tensor, where: slice, gradient_wanted: bool) -> tuple[Tensor, Tensor | None]:
        with torch.no_grad():
            of_teacher = compared.teacher_head.logits(compared.taught[where]).to(logits.dtype)
            log_p = torch.log_softmax(of_teacher / wanted.temperature, -1) + compared.their_logs[where, None]
        with torch.enable_grad():
            given = logits.detach().requires_grad_()
            earlier = compared.our_logs[where].detach().to(logits.dtype).requires_grad_()
            log_q = torch.log_softmax(given / wanted.temperature, -1) + earlier[:, None]
            found = hybrid(log_p, log_q, vocabulary, wanted.beta, matched_weight)
            losses = found * scale
            gradient = None
            if gradient_wanted:
                gradient, slope = torch.autograd.grad(losses.sum(), (given, earlier))
                slopes[where] = slope.to(slopes.dtype)
        costs[where] = found.detach().to(costs.dtype)
        return losses.detach(), gradient

    return rows


def hybrid(log_p: Float[Tensor, "rows teacher_vocab"], log_q: Float[Tensor, "rows vocab"], vocabulary: MatchedVocabulary,
           beta: float, matched_weight: float) -> Float[Tensor, " rows"]:
    """Divergence over matched tokens and ULD over the others, differentiable in log_q."""
    found = torch.zeros_like(log_q[:, 0])
    if matched_weight > 0 and len(vocabulary.student):
        of_student = log_q[:, vocabulary.student].clamp(min=LEAST_LOG)
        values, _ = generalised_jsd(log_p[:, vocabulary.teacher], of_student, beta, gradient_wanted=False)
        found = found + matched_weight * values
    if matched_weight < 1 and len(vocabulary.student_rest) + len(vocabulary.teacher_rest):
        ours = log_q[:, vocabulary.student_rest].exp().sort(-1, descending=True).values
        theirs = log_p[:, vocabulary.teacher_rest].exp().sort(-1, descending=True).values
        width = max(ours.shape[1], theirs.shape[1])
        ours, theirs = (nn.functional.pad(each, (0, width - each.shape[1])) for each in (ours, theirs))
        found = found + (1 - matched_weight) * (ours - theirs).abs().sum(-1)
    return found


def _chosen_rows(tokens: Int[Tensor, " rows"], slopes: Float[Tensor, " rows"], temperature: float) -> RowsLoss:
    """slope * log-probability of each row's token."""

    def rows(logits: Tensor, where: slice, gradient_wanted: bool) -> tuple[Tensor, Tensor | None]:
        logs = torch.log_softmax(logits / temperature, -1)
        token, slope = tokens[where, None], slopes[where]
        losses = slope * logs.gather(1, token)[:, 0]
        if not gradient_wanted:
            return losses, None
        gradient = logs.exp_().neg_()
        gradient.scatter_add_(1, token, torch.ones_like(token, dtype=gradient.dtype))
        return losses, gradient.mul_(slope[:, None] / temperature)

    return rows

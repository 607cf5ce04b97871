"""Computes the loss of all draft steps against the teacher in chunks, so that memory does not grow with the vocabulary. The
teacher's distribution of a chunk serves every step: position j of step k has the teacher of position j + k. Gradients are
computed in the forward pass and scaled in the backward pass, as in model_ops.losses.head."""

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from model_ops.losses import add_product
from model_ops.speculators.losses.speculator_losses import ETA, OUTSIDE, LossKind, TargetRows, loss_and_gradient

FULL_LOGITS_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Most logits of the full vocabulary in a chunk, by kind of device."""


@dataclass(frozen=True)
class TeacherLogits:
    """Logits of a chunk of positions."""

    logits: Float[Tensor, "positions draft_vocab"]
    normaliser: Float32[Tensor, "positions 1"] | None
    """Log-sum-exp over the full vocabulary; None for a full draft vocabulary."""
    labels: Int[Tensor, " positions"] | None

    def rows(self, which: slice) -> TargetRows:
        """Probabilities of a slice of the chunk, in float32."""
        logits = self.logits[which].float()
        labels = None if self.labels is None else self.labels[which]
        highest = logits.amax(-1, keepdim=True)
        probabilities = logits.softmax(-1)
        own = highest - probabilities.amax(-1, keepdim=True).log()
        if self.normaliser is None:
            mass, normaliser = torch.ones_like(own), own
        else:
            normaliser = self.normaliser[which]
            mass = (own - normaliser).exp()
            probabilities.mul_(mass)
        log_mean = torch.linalg.vecdot(probabilities, logits)[:, None] - mass * normaliser
        return TargetRows(probabilities, mass, log_mean, labels)


class Teacher:
    """The target's head and the ascending ids of the draft vocabulary. soft_cap c: a logit l is c tanh(l / c) (Gemma 2)."""

    def __init__(
        self, head: Float[Tensor, "vocab hidden"], target_ids: Int[Tensor, " draft_vocab"], soft_cap: float | None = None
    ):
        self.head, self.soft_cap = head.detach(), soft_cap
        self.target_ids = target_ids.to(head.device)
        self._ids_on_host = target_ids.tolist()
        self.whole = len(target_ids) == head.shape[0]

    @property
    def draft_vocab_size(self) -> int:
        return len(self.target_ids)

    def draft_labels(self, tokens: Int[Tensor, " positions"]) -> Int[Tensor, " positions"]:
        """Draft ids of target tokens; OUTSIDE for a token outside the draft vocabulary."""
        place = torch.searchsorted(self.target_ids, tokens).clamp(max=self.draft_vocab_size - 1)
        return torch.where(self.target_ids[place] == tokens, place, OUTSIDE)

    @torch.no_grad()
    def logits(self, last: Float[Tensor, "positions hidden"], labels: Int[Tensor, " positions"] | None = None) -> TeacherLogits:
        """Teacher logits of a chunk of positions, in the head's dtype. labels: draft ids."""
        last, vocab = last.to(self.head.dtype), self.head.shape[0]
        with torch.autocast(last.device.type, enabled=False):
            if self.whole:
                return TeacherLogits(self._capped(last @ self.head.T), None, labels)
            logits = last.new_empty(len(last), self.draft_vocab_size)
            highest = last.new_full((len(last), 1), float("-inf"), dtype=torch.float32)
            total = torch.zeros_like(highest)
            limit = FULL_LOGITS_AT_ONCE.get(last.device.type, FULL_LOGITS_AT_ONCE["cpu"])
            at_once = max(1, limit // max(1, len(last)))
            edges = [*range(0, vocab, at_once), vocab]
            columns = [bisect_left(self._ids_on_host, edge) for edge in edges]
            for start, end, first, after in zip(edges, edges[1:], columns, columns[1:], strict=False):
                chunk = self._capped(last @ self.head[start:end].T)
                logits[:, first:after] = chunk.index_select(1, self.target_ids[first:after] - start)
                chunk = chunk.float()
                top = torch.maximum(highest, chunk.amax(-1, keepdim=True))
                total = total * (highest - top).exp() + chunk.sub_(top).exp_().sum(-1, keepdim=True)
                highest = top
            return TeacherLogits(logits, total.log_().add_(highest), labels)

    def _capped(self, logits: Float[Tensor, "positions vocab"]) -> Tensor:
        return logits if self.soft_cap is None else logits.div_(self.soft_cap).tanh_().mul_(self.soft_cap)

    def probabilities(self, last: Float[Tensor, "positions hidden"]) -> Float32[Tensor, "positions draft_vocab"]:
        """Probabilities of all positions at once; for few positions."""
        return self.logits(last).rows(slice(None)).probabilities


LOGITS_HELD = {"cpu": 1 << 23, "cuda": 1 << 27}
"""Most logits of a chunk, of teacher and all steps together, by kind of device: 16 MiB or 256 MiB in bfloat16."""

MOST_ROWS = 1_024
"""Most rows of a chunk on a CPU: more rows do not make products faster, and take more memory with a small vocabulary."""

FEWEST_ROWS = 32
"""Fewest rows of a chunk; LOGITS_HELD allows as many for a vocabulary of up to 262,144."""

SOFTMAX_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 27}
"""Logits per softmax in float32; on a CPU as many as fit into its cache together with the target's probabilities."""


@dataclass(frozen=True)
class DraftStep:
    """One draft step: the input of its head at every supervised position, and the teacher's position of each."""

    states: Float[Tensor, "positions width"]
    """States after the final norm."""
    head: Float[Tensor, "draft_vocab width"]
    rows: Int[Tensor, " positions"]
    """Ascending indices into the teacher's last states."""
    stands_for: Float32[Tensor, " positions"] | None = None
    """Importance weight of each position if positions are sampled; None: 1."""


@dataclass(frozen=True)
class ChainLoss:
    """Result of `chain_loss`. total: sum over steps of weight * sum of losses times stands_for, differentiable in states and
    heads. Not differentiable: losses and alphas by step and position, and mass, the target's probability of the draft
    vocabulary at each position of step 0."""

    total: Float32[Tensor, ""]
    losses: list[Float32[Tensor, " _"]]
    alphas: list[Float32[Tensor, " _"]]
    mass: Float32[Tensor, " positions"]


def chain_loss(
    kind: LossKind,
    drafts: Sequence[DraftStep],
    teacher: Teacher,
    last: Float[Tensor, "contexts hidden"],
    weights: Sequence[float] | None = None,
    labels: Int[Tensor, " contexts"] | None = None,
    eta: float = ETA,
    kl_shares: Sequence[float] | None = None,
) -> ChainLoss:
    """The loss of every step against the teacher. labels: tokens that the target generated, as target ids. kl_shares: lambda of
    lk_lambda by step (None: by position). Raises ValueError if weights or kl_shares do not have one value per step, or rows do
    not ascend."""
    weights = [1.0] * len(drafts) if weights is None else list(weights)
    if len(weights) != len(drafts):
        raise ValueError(f"there are {len(drafts)} draft steps and {len(weights)} weights; give one for each")
    if kl_shares is not None and len(kl_shares) != len(drafts):
        raise ValueError(f"there are {len(drafts)} draft steps and {len(kl_shares)} shares of KL; give one for each")
    if last.device.type == "cpu" and any(bool((draft.rows.diff() <= 0).any()) for draft in drafts):  # a device would wait
        raise ValueError("rows of a draft step must be in ascending order; sort them")
    heads = list({id(draft.head): draft.head for draft in drafts}.values())
    of_step = [next(place for place, head in enumerate(heads) if head is draft.head) for draft in drafts]
    plan = _Plan(
        kind,
        eta,
        teacher,
        last,
        None if labels is None else teacher.draft_labels(labels),
        [draft.rows for draft in drafts],
        [draft.stands_for for draft in drafts],
        of_step,
        weights,
        [None] * len(drafts) if kl_shares is None else list(kl_shares),
    )
    total, mass, *by_step = _ChainLoss.apply(plan, *(draft.states for draft in drafts), *heads)
    return ChainLoss(total, by_step[: len(drafts)], by_step[len(drafts) :], mass)


@dataclass(frozen=True)
class _Plan:
    kind: LossKind
    eta: float
    teacher: Teacher
    last: Tensor
    labels: Tensor | None
    rows: list[Tensor]
    stands_for: list[Tensor | None]
    head_of_step: list[int]
    weights: list[float]
    kl_shares: list[float | None]

    def pieces(self) -> list[list[int]]:
        """For each chunk, the first of the teacher's positions of each softmax, and the one after its last."""
        device = self.last.device.type
        limit = LOGITS_HELD.get(device, LOGITS_HELD["cpu"]) // self.teacher.draft_vocab_size
        if device == "cpu":
            limit = min(limit, MOST_ROWS)
        size = max(1, max(limit, FEWEST_ROWS) // (1 + len(self.rows)))
        elements = SOFTMAX_ELEMENTS.get(device, SOFTMAX_ELEMENTS["cpu"])
        at_once, chunks = max(1, elements // self.teacher.draft_vocab_size), []
        for first in range(0, len(self.last), size):
            after = min(first + size, len(self.last))
            chunks.append([*range(first, after, at_once), after])
        return chunks

    def places(self, edges: list[int]) -> list[dict[int, int]]:
        """Index of every edge in the positions of each step, in one transfer."""
        wanted = torch.tensor(edges, device=self.last.device)
        indices = torch.stack([torch.searchsorted(rows, wanted) for rows in self.rows]).tolist()
        return [dict(zip(edges, of_step, strict=True)) for of_step in indices]


class _ChainLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, plan: _Plan, *tensors: Tensor):
        steps = len(plan.rows)
        states, heads = tensors[:steps], tensors[steps:]
        kind = plan.last.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else heads[0].dtype
        wanted = ctx.needs_input_grad[1:]
        state_gradients = [
            torch.empty_like(given) if needed else None for given, needed in zip(states, wanted[:steps], strict=True)
        ]
        head_gradients = [
            torch.zeros_like(given, dtype=torch.float32) if needed else None
            for given, needed in zip(heads, wanted[steps:], strict=True)
        ]
        losses = [given.new_empty(len(given), dtype=torch.float32) for given in states]
        alphas = [torch.empty_like(loss) for loss in losses]
        mass = losses[0].new_zeros(len(plan.rows[0]))
        pieces = plan.pieces()
        places = plan.places(list(dict.fromkeys(itertools.chain.from_iterable(pieces))))
        with torch.autocast(kind, enabled=False):
            matrices = [head.to(dtype) for head in heads]
            for edges in pieces:
                first, after = edges[0], edges[-1]
                spans = [slice(place[first], place[after]) for place in places]
                if all(span.start == span.stop for span in spans):
                    continue
                target = plan.teacher.logits(plan.last[first:after], None if plan.labels is None else plan.labels[first:after])
                for head, matrix in enumerate(matrices):
                    members = [step for step in range(steps) if plan.head_of_step[step] == head]
                    entered = torch.cat([states[step][spans[step]].to(dtype) for step in members])
                    products = entered @ matrix.T
                    parts = products.split([spans[step].stop - spans[step].start for step in members])
                    of_steps = [(step, places[step], part) for step, part in zip(members, parts, strict=True)]
                    _softmaxes(plan, target, edges, of_steps, losses, alphas, mass, any(wanted))
                    if any(state_gradients[step] is not None for step in members):
                        returned = (products @ matrix).split([len(part) for part in parts])
                        for step, gradient in zip(members, returned, strict=True):
                            if (of_state := state_gradients[step]) is not None:
                                of_state[spans[step]] = gradient
                    if head_gradients[head] is not None:
                        add_product(head_gradients[head], products, entered)
        ctx.gradients = [
            *state_gradients,
            *(
                None if gradient is None else gradient.to(given.dtype)
                for gradient, given in zip(head_gradients, heads, strict=True)
            ),
        ]
        ctx.mark_non_differentiable(mass, *losses, *alphas)
        total = sum(
            (
                weight * (loss if times is None else loss * times).sum()
                for weight, loss, times in zip(plan.weights, losses, plan.stands_for, strict=True)
            ),
            start=torch.zeros((), device=plan.last.device),
        )
        return total, mass, *losses, *alphas

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor, *_: Tensor):
        gradients, ctx.gradients = ctx.gradients, None  # scaled in place and returned
        return None, *(None if gradient is None else gradient.mul_(upstream) for gradient in gradients)


def _softmaxes(
    plan: _Plan,
    target: TeacherLogits,
    edges: list[int],
    parts: list[tuple[int, dict[int, int], Tensor]],
    losses: list[Tensor],
    alphas: list[Tensor],
    mass: Tensor,
    gradient_wanted: bool,
) -> None:
    """Losses of a chunk, a few positions at a time; gradients overwrite the logits."""
    first = edges[0]
    for start, end in itertools.pairwise(edges):
        rows: TargetRows | None = None
        for step, place, logits in parts:
            where, low, high = slice(place[start], place[end]), place[start] - place[first], place[end] - place[first]
            if low == high:
                continue
            rows = target.rows(slice(start - first, end - first)) if rows is None else rows
            met = rows if high - low == end - start else rows[plan.rows[step][where] - start]
            if step == 0:
                mass[where] = met.mass[:, 0]
            times = plan.stands_for[step]
            scale = plan.weights[step] if times is None else plan.weights[step] * times[where, None]
            losses[step][where], alphas[step][where], gradient = loss_and_gradient(
                plan.kind, logits[low:high].float(), met, plan.eta, scale, gradient_wanted, plan.kl_shares[step]
            )
            if gradient is not None:
                logits[low:high] = gradient

"""The target's output distribution as the drafter's teacher, computed from its last hidden states in chunks.

The softmax is over the full vocabulary, so the probabilities of the draft vocabulary sum to at most 1; tokens outside it are
never accepted. Of the full vocabulary's logits only the draft vocabulary's columns and a running log-sum-exp are held.
"""

from bisect import bisect_left
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from model_ops.speculators.losses.speculator_losses import OUTSIDE, TargetRows

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

"""Interface of a drafter for speculative decoding.

The decoder calls `begin` with the prompts of a batch, then `propose` and `advance` in turn; `keep` drops finished rows.
Drafters without weights are in `model_ops.drafting.lookup`, trained ones in `model_ops.speculators`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor

from model_ops.decoding.sampling import sample


@dataclass(frozen=True)
class Proposal:
    """Draft tokens of one round.

    tokens are ids of the target; valid is False for padding. Draft k was drawn from probabilities[row, k], over the draft
    vocabulary, where it has index draft_index; target_ids maps draft vocabulary to target ids.
    """

    tokens: Int[Tensor, "rows drafts"]
    valid: Bool[Tensor, "rows drafts"]
    probabilities: Float32[Tensor, "rows drafts draft_vocab"] | None = None
    """None for a deterministic drafter."""
    draft_index: Int[Tensor, "rows drafts"] | None = None
    target_ids: Int[Tensor, " draft_vocab"] | None = None


def independent_drafts(
    logits: Float32[Tensor, "rows drafts draft_vocab"],
    temperature: float,
    uniforms: Float32[Tensor, "rows drafts"],
    target_ids: Int[Tensor, " draft_vocab"],
) -> Proposal:
    """Drafts that do not see each other: the argmax of each at temperature 0, else a sample of each."""
    probabilities = None if temperature == 0 else (logits / temperature).softmax(dim=-1)
    index = logits.argmax(dim=-1) if probabilities is None else sample(probabilities, uniforms)
    return Proposal(target_ids[index], torch.ones_like(index, dtype=torch.bool), probabilities, index, target_ids)


class Drafter(Protocol):
    capture: tuple[int, ...]
    """States of the target that the drafter reads: block boundaries, or `incremental.FINAL`."""

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        first: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens features"] | None,
    ) -> None:
        """Starts a batch. first: the target's first token of each answer; captured: its hidden states over the prompts."""

    def propose(self, count: int, temperature: float, uniforms: Float32[Tensor, "rows drafts"]) -> Proposal:
        """Proposes the next `count` tokens of every row."""

    def advance(
        self,
        emitted: Int[Tensor, "rows tokens"],
        counts: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens features"] | None,
    ) -> None:
        """Takes the result of a round. emitted: its tokens, the first counts[row] of each row are valid. captured: hidden
        states at the positions of the tokens that were the target's INPUT in that round."""

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Keeps only these rows, in this order."""

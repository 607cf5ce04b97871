"""What the decoder asks of a drafter, and the n-gram drafter behind that interface.

A drafter lives for one batch: `begin` shows it the prompts, then `propose` and `advance` alternate; `keep` follows the
rows that stay in the batch. EAGLE-3 is in `model_ops.speculators.eagle3_drafter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor

from model_ops.decoding.ngram import NgramIndex


@dataclass(frozen=True)
class Proposal:
    """Drafts of one round. probabilities is None for a drafter that proposes surely.

    tokens are the target's ids; valid marks real proposals. probabilities[row, k] is the distribution over the draft
    vocabulary that draft k was drawn from and draft_index its index there; target_ids maps that vocabulary.
    """

    tokens: Int[Tensor, "rows drafts"]
    valid: Bool[Tensor, "rows drafts"]
    probabilities: Float32[Tensor, "rows drafts draft_vocab"] | None = None
    draft_index: Int[Tensor, "rows drafts"] | None = None
    target_ids: Int[Tensor, " draft_vocab"] | None = None


class Drafter(Protocol):
    capture: tuple[int, ...]
    """Which states of the target it needs: boundaries, or `incremental.FINAL`."""

    def begin(self, prompts: Sequence[Sequence[int]], first: Int[Tensor, " rows"],
              captured: Float[Tensor, "rows tokens features"] | None) -> None:
        """The prompts, the first token the target gave, and the captured states at the prompts' positions."""

    def propose(self, count: int, temperature: float, uniforms: Float32[Tensor, "rows drafts"]) -> Proposal:
        """Drafts of the next `count` tokens."""

    def advance(self, emitted: Int[Tensor, "rows tokens"], counts: Int[Tensor, " rows"],
                captured: Float[Tensor, "rows tokens features"] | None) -> None:
        """The tokens a round emitted (the first counts[row] of each row), and the states captured at the positions of
        the tokens that went INTO the target in that round."""

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Only these rows go on, in this order."""


class NgramDrafter:
    """Prompt lookup for a batch; see `model_ops.decoding.ngram`."""

    capture: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.indexes: list[NgramIndex] = []

    def begin(self, prompts, first, captured=None) -> None:
        self.indexes = [NgramIndex([*prompt, token]) for prompt, token in zip(prompts, first.tolist(), strict=True)]

    def propose(self, count: int, temperature: float, uniforms: Tensor | None = None) -> Proposal:
        proposals = [index.propose(count) for index in self.indexes]
        tokens = torch.tensor([proposal + [0] * (count - len(proposal)) for proposal in proposals])
        lengths = torch.tensor([len(proposal) for proposal in proposals])
        return Proposal(tokens, torch.arange(count) < lengths[:, None])

    def advance(self, emitted, counts, captured=None) -> None:
        for index, tokens, count in zip(self.indexes, emitted.tolist(), counts.tolist(), strict=True):
            index.extend(tokens[:count])

    def keep(self, rows) -> None:
        self.indexes = [self.indexes[row] for row in rows.tolist()]

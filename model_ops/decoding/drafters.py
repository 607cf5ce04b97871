"""The interface between decoder and drafter.

A drafter lives for one batch: `begin` shows it the prompts, then `propose` and `advance` alternate; `keep` follows the
rows that stay in the batch. Drafters without weights are in `model_ops.decoding.lookup`, trained ones in
`model_ops.speculators`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor


@dataclass(frozen=True)
class Proposal:
    """Drafts of one round. probabilities: None for a deterministic drafter.

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
        """Start a batch. first: the target's first token of each answer; captured: its hidden states over the prompts."""

    def propose(self, count: int, temperature: float, uniforms: Float32[Tensor, "rows drafts"]) -> Proposal:
        """Propose the next `count` tokens."""

    def advance(self, emitted: Int[Tensor, "rows tokens"], counts: Int[Tensor, " rows"],
                captured: Float[Tensor, "rows tokens features"] | None) -> None:
        """The tokens a round emitted (the first counts[row] of each row), and the states captured at the positions of
        the tokens that went INTO the target in that round."""

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep only these rows, in this order."""

"""Interface of a drafter for speculative decoding.

The decoder calls `begin` with the prompts of a batch, then `propose` and `advance` in turn; `keep` drops finished rows.
Drafters without weights are in `model_ops.drafting.lookup`, trained ones in `model_ops.speculators`.
"""

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


class DraftChain:
    """Drafts that are proposed one after another: the argmax of each at temperature 0 or if `greedy`, else a sample of each."""

    def __init__(self, temperature: float, uniforms: Float32[Tensor, "rows drafts"], greedy: bool):
        self.temperature, self.uniforms = 0.0 if greedy else temperature, uniforms
        self.indices: list[Tensor] = []
        self.distributions: list[Tensor] = []

    def add(self, logits: Float32[Tensor, "rows draft_vocab"]) -> Int[Tensor, " rows"]:
        """The next draft of every row, as an index of the draft vocabulary."""
        if self.temperature == 0:
            self.indices.append(logits.argmax(dim=-1))
        else:
            self.distributions.append((logits / self.temperature).softmax(dim=-1))
            self.indices.append(sample(self.distributions[-1], self.uniforms[:, len(self.indices)]))
        return self.indices[-1]

    def proposal(self, target_ids: Int[Tensor, " draft_vocab"]) -> Proposal:
        """All drafts."""
        index = torch.stack(self.indices, dim=1)
        probabilities = torch.stack(self.distributions, dim=1) if self.distributions else None
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

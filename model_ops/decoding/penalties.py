"""Penalties on repeated tokens: repetition, frequency and presence, as vLLM applies them.

The repetition penalty divides positive logits and multiplies others, for tokens of prompt or answer (Keskar et al. 2019, arXiv
1909.05858). Then each occurrence in the answer subtracts the frequency penalty, and at least one occurrence subtracts the
presence penalty (OpenAI API). A draft's own position counts the drafts before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Float32, Int
    from torch import Tensor


@dataclass(frozen=True)
class Penalties:
    """repetition 1, presence 0 and frequency 0 change nothing."""

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0


NO_PENALTIES = Penalties()


class TokenHistory:
    """The tokens that each row's prompt and answer hold so far."""

    def __init__(self, prompts: Sequence[Sequence[int]], vocabulary: int, device):
        import torch

        self.in_prompt = torch.zeros(len(prompts), vocabulary, dtype=torch.bool, device=device)
        self.counts = torch.zeros(len(prompts), vocabulary, dtype=torch.int32, device=device)
        for row, prompt in enumerate(prompts):
            self.in_prompt[row, torch.tensor(list(prompt), device=device)] = True

    def add(self, tokens: Int[Tensor, "rows tokens"], counts: Int[Tensor, " rows"]) -> None:
        """Adds the first counts[row] tokens of each row to its answer."""
        import torch

        valid = torch.arange(tokens.shape[1], device=tokens.device) < counts[:, None]
        self.counts.scatter_add_(1, tokens, valid.to(self.counts.dtype))

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Keeps only these rows, in this order."""
        self.in_prompt, self.counts = self.in_prompt[rows], self.counts[rows]


def penalized(
    logits: Float32[Tensor, "rows positions vocab"],
    penalties: Penalties,
    history: TokenHistory,
    drafts: Int[Tensor, "rows positions-1"] | None = None,
) -> Float32[Tensor, "rows positions vocab"]:
    """The penalized logits of a round's positions. drafts: the tokens before positions 1, 2, ..."""
    import torch

    counts, by_position = history.counts, []
    for position in range(logits.shape[1]):
        if position and drafts is not None:
            drafted = drafts[:, position - 1 : position]
            counts = counts.scatter_add(1, drafted, torch.ones_like(drafted, dtype=counts.dtype))
        at = logits[:, position]
        repeated = history.in_prompt | (counts > 0)
        at = torch.where(repeated, torch.where(at > 0, at / penalties.repetition, at * penalties.repetition), at)
        by_position.append(at - penalties.frequency * counts - penalties.presence * (counts > 0))
    return torch.stack(by_position, dim=1)

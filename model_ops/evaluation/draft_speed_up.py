"""How much faster a target answers with a draft model: Leviathan's estimate from acceptance and cost. Imports no torch.

    alpha = acceptance_chance(drafts=100, accepted_at=[80, 60, 45])
    best = best_length(alpha, cost=0.2, longest=8)            # BestLength(num_speculative_tokens=4, speed_up=2.0...)

Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.8. It assumes that every draft is accepted with the same chance,
independent of the others, and that the target verifies all drafts in the time of one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BestLength:
    """The number of drafts with the largest estimated speed-up; 0 drafts and a speed-up of 1 if drafting costs more than it
    gains."""

    num_speculative_tokens: int
    speed_up: float


def acceptance_chance(drafts: int, accepted_at: Sequence[int]) -> float:
    """alpha: the chance that a draft is accepted where all drafts before it were; the maximum likelihood estimate over rounds.

    drafts: rounds. accepted_at: rounds that accepted the drafts up to and including position 0, 1, ... A round tries position i
    if it accepted all positions before it. 0 without a round.
    """
    tried = drafts + sum(accepted_at[:-1])
    return sum(accepted_at) / tried if tried else 0.0


def expected_speed_up(alpha: float, num_speculative_tokens: int, cost: float) -> float:
    """Expected improvement in time: (1 - alpha^(k + 1)) / ((1 - alpha) (k cost + 1)), with k drafts a round.

    cost: time of one token of the draft model over that of the target.
    """
    rounds = num_speculative_tokens + 1
    tokens = rounds if alpha == 1 else (1 - alpha**rounds) / (1 - alpha)
    return tokens / (num_speculative_tokens * cost + 1)


def best_length(alpha: float, cost: float, longest: int) -> BestLength:
    """The best of 0 to `longest` drafts a round; the fewest where several are equal."""
    found = [BestLength(drafts, expected_speed_up(alpha, drafts, cost)) for drafts in range(longest + 1)]
    return max(found, key=lambda each: (each.speed_up, -each.num_speculative_tokens))

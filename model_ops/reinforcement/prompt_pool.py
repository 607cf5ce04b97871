"""Which prompts are asked next: those that the policy solves sometimes, unseen ones first.

A group whose answers are all right or all wrong teaches nothing. So a prompt that was always or never solved is drawn a fifth
as often as others (prime-rl's pools have the weights 0.2, 1, 0.2); it is not left out, because the policy changes. The pass
rate of a prompt is a moving average over its groups. What is drawn follows from seed, chunk and the grades so far.
"""

from collections.abc import Sequence

import numpy as np

NEWEST_WEIGHT = 0.5
"""Of the newest group in a prompt's pass rate."""
SELDOM = 0.2
"""Weight of prompts that are always or never solved."""
ALWAYS, NEVER = 0.95, 0.05
"""Pass rates from which a prompt counts so."""


class PromptPool:
    """passing_grade: grade from which an answer counts as right."""

    def __init__(self, prompts: int, passing_grade: float, seed: int):
        self.passing_grade, self._seed = passing_grade, seed
        self.rates = np.full(prompts, np.nan)
        """Pass rate of each prompt; NaN for one that was not asked, or never graded."""
        self._asked = np.zeros(prompts, bool)

    def draw(self, chunk: int, count: int) -> list[int]:
        """Up to `count` different prompts: unseen ones in random order, then others in proportion to their weights
        (Efraimidis and Spirakis 2006: the greatest log(u) / weight)."""
        rates = np.nan_to_num(self.rates, nan=0.5)
        weights = np.where((rates >= ALWAYS) | (rates <= NEVER), SELDOM, 1.0)
        drawn = np.log(np.random.default_rng((self._seed, chunk, 5)).random(len(rates))) / weights
        order = np.lexsort((-drawn, self._asked))
        return order[:count].tolist()

    def see(self, prompt: int, grades: Sequence[float | None]) -> None:
        """Takes a group's grades into the prompt's pass rate."""
        self._asked[prompt] = True
        known = [grade >= self.passing_grade for grade in grades if grade is not None]
        if known:
            rate, before = sum(known) / len(known), self.rates[prompt]
            self.rates[prompt] = rate if np.isnan(before) else NEWEST_WEIGHT * rate + (1 - NEWEST_WEIGHT) * before

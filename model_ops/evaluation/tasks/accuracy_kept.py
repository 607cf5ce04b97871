"""How much of the unquantized model's score the served model keeps: the ratio of both on the same items, with its interval.

    kept = AccuracyKept({"calls": (own, reference)})     # scores by item, for each suite
    kept.of("calls"), kept.average()                     # Ratio(value, low, high, items); None without a right answer

The 95 % interval is Student's t over pairs of scores: both models answered the same items. If no item differs, the rule of
three bounds how many could.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from model_ops.decoding.student_t import error_of, moves, student, variance


@dataclass(frozen=True)
class Ratio:
    """Score of the served model over that of its unquantized form, with its interval.

    None instead of an interval for a single item, and where the unquantized form's score is that of a single item.
    """

    value: float
    low: float | None
    high: float | None
    items: int


class AccuracyKept:
    """Ratios of suites. scores: suite -> (served model's scores by item, reference's scores by item), from 0 to 1."""

    def __init__(self, scores: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]):
        self._pairs: dict[str, np.ndarray] = {}
        for suite, (own, reference) in scores.items():
            both = sorted(set(own) & set(reference))
            pairs = np.array([[own[item], reference[item]] for item in both], dtype=np.float64).reshape(-1, 2)
            if pairs[:, 1].sum():
                self._pairs[suite] = pairs

    def of(self, suite: str) -> Ratio | None:
        """The ratio of one suite; None if the reference has no right answer there."""
        return self._mean([self._pairs[suite]]) if suite in self._pairs else None

    def average(self) -> Ratio | None:
        """The mean ratio over suites, each with the same weight; None if none has a ratio."""
        return self._mean(list(self._pairs.values())) if self._pairs else None

    @staticmethod
    def _mean(suites: list[np.ndarray]) -> Ratio:
        items = sum(map(len, suites))
        value = float(np.mean([pairs[:, 0].sum() / pairs[:, 1].sum() for pairs in suites]))
        equal = all((pairs[:, 0] == pairs[:, 1]).all() for pairs in suites)
        if any(len(pairs) < 2 or (not equal and np.count_nonzero(pairs[:, 1]) < 2) for pairs in suites):
            return Ratio(value, None, None, items)
        if equal:
            return Ratio(value, 1 - min(1, 3 / items), 1 + 3 / items, items)
        error, freedom = error_of([(variance(moves(pairs[:, 1], pairs[:, 0])) / len(suites) ** 2, len(pairs) - 1)
                                   for pairs in suites])
        reach = student(freedom) * error
        return Ratio(value, max(0.0, value - reach), value + reach, items)

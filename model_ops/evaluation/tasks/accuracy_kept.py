"""How much of the unquantized model's score the served model keeps: the ratio of both on the same items, with its interval.

    kept = AccuracyKept({"calls": (own, reference)}, seed=0)     # scores by item, for each suite
    kept.of("calls"), kept.average()                             # Ratio(value, low, high, items); None without a right answer

The 95 % interval is a bootstrap over pairs of scores: both models answered the same items. Resamples in which the reference
has no right answer have no ratio and are left out. If no item differs, the rule of three bounds how many could.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from model_ops.decoding.acceptance import RESAMPLES


@dataclass(frozen=True)
class Ratio:
    """Score of the served model over that of its unquantized form, with its interval (None for a single item)."""

    value: float
    low: float | None
    high: float | None
    items: int


class AccuracyKept:
    """Ratios of suites. scores: suite -> (served model's scores by item, reference's scores by item), from 0 to 1."""

    def __init__(self, scores: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]], seed: int = 0):
        self._pairs: dict[str, np.ndarray] = {}
        self._drawn: dict[str, np.ndarray] = {}
        for place, (suite, (own, reference)) in enumerate(scores.items()):
            both = sorted(set(own) & set(reference))
            pairs = np.array([[own[item], reference[item]] for item in both], dtype=np.float64).reshape(-1, 2)
            if not pairs[:, 1].sum():
                continue
            self._pairs[suite] = pairs
            drawn = np.random.default_rng((seed, place)).integers(0, len(pairs), (RESAMPLES, len(pairs)))
            sums = pairs[drawn].sum(axis=1)
            with np.errstate(invalid="ignore", divide="ignore"):
                self._drawn[suite] = np.where(sums[:, 1] > 0, sums[:, 0] / sums[:, 1], np.nan)

    def of(self, suite: str) -> Ratio | None:
        """The ratio of one suite; None if the reference has no right answer there."""
        if suite not in self._pairs:
            return None
        pairs = self._pairs[suite]
        value, count = float(pairs[:, 0].sum() / pairs[:, 1].sum()), len(pairs)
        if count < 2:
            return Ratio(value, None, None, count)
        if (pairs[:, 0] == pairs[:, 1]).all():
            return Ratio(value, 1 - min(1, 3 / count), 1 + 3 / count, count)
        return Ratio(value, *_ends(self._drawn[suite]), count)

    def average(self) -> Ratio | None:
        """The mean ratio over suites, each with the same weight; None if none has a ratio."""
        ratios = [ratio for ratio in map(self.of, self._pairs) if ratio is not None]
        if not ratios:
            return None
        items, value = sum(ratio.items for ratio in ratios), float(np.mean([ratio.value for ratio in ratios]))
        if len(ratios) == 1:
            return ratios[0]
        if any(ratio.low is None for ratio in ratios):
            return Ratio(value, None, None, items)
        low, high = _ends(np.mean(list(self._drawn.values()), axis=0))
        if low == high:
            low, high = value - 3 / items, value + 3 / items
        return Ratio(value, low, high, items)


def _ends(drawn: np.ndarray) -> tuple[float, float]:
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return float(low), float(high)

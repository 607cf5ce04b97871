"""Holm's procedure: which of many tests alarm, so that a false alarm among all of them is as rare as stated.

    decided = holm([0.2, 1e-6, 0.01], rate=0.001)       # Decision(alarm=False, level=...), Decision(alarm=True, ...), ...

The family-wise error rate is at most `rate`, however the tests depend on each other (Holm 1979). It bounds the false discovery
rate as well, which Benjamini-Hochberg bounds only for independent or positively dependent tests; these tests look at the same
sessions, so their dependence is unknown. The first alarm needs p <= rate / number of tests in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """level: the largest p-value with which the test alarms, given the others."""

    alarm: bool
    level: float


def holm(p_values: Sequence[float], rate: float) -> list[Decision]:
    """A decision for each p-value, in their order. Raises ValueError for a p-value or rate outside of (0, 1]."""
    if not 0 < rate <= 1 or any(not 0 < p <= 1 for p in p_values):
        raise ValueError("p-values and the rate are above 0 and at most 1")
    decided = [Decision(False, rate)] * len(p_values)
    stopped: float | None = None
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        level = rate / (len(p_values) - rank) if stopped is None else stopped
        alarm = stopped is None and p_values[place] <= level
        if not alarm and stopped is None:
            stopped = level
        decided[place] = Decision(alarm, level)
    return decided

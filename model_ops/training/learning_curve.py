"""How much a measurement rises with each doubling of the tokens or rows.

    found = rise_a_doubling([(4_096, 1.42), (8_192, 1.55), (16_384, 1.66)])      # Rise(value=0.12, error=0.003, n=3)
    found.low, found.high

    upper_quantile(2)           # 2.920, Student's t: a one-sided 95 % interval of a mean of three ends so many errors away

Measurements on held-out rows are nearly linear in the logarithm of the tokens over the last doublings of a training. Beyond the
measured range it is an extrapolation. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]
"""(tokens or rows so far, measurement)."""


@dataclass(frozen=True)
class Rise:
    """Rise a doubling, in the measurement's unit."""

    value: float
    error: float
    """Standard error."""
    n: int
    """Points."""

    @property
    def low(self) -> float:
        """Lower end of the one-sided 95 % interval of the fit, which takes points for independent and the curve for linear."""
        return self.value - self._half

    @property
    def high(self) -> float:
        """Upper end of the one-sided 95 % interval of the fit."""
        return self.value + self._half

    @property
    def _half(self) -> float:
        return upper_quantile(self.n - 2) * self.error


def rise_a_doubling(points: Sequence[Point]) -> Rise | None:
    """Least squares of the measurement on log2 of what it was trained on; None with fewer than three different places."""
    if len({at for at, _ in points}) < 3:
        return None
    xs, ys = [math.log2(at) for at, _ in points], [y for _, y in points]
    n, mean_x, mean_y = len(xs), sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    left = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    return Rise(slope, math.sqrt(left / (n - 2) / spread), n)


QUANTILES = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""95 % quantiles with 1 to 10 degrees of freedom."""


def upper_quantile(degrees: int) -> float:
    """The 95 % quantile; of more than 10 degrees of freedom that of 10, which is larger by at most 10 %. Fewer than 1 count as
    1."""
    return QUANTILES[min(len(QUANTILES), max(1, degrees)) - 1]

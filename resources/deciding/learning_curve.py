"""How much a measurement rises with each doubling of what a model was trained on, with the error of that estimate.

    points = points_of(directory / "metrics.jsonl", ("validation_expected_tau", "expected_tau"))
    found = rise_a_doubling(points)            # Rise(value=0.12, error=0.02, n=8, says="...")

Read from one training's own metrics, since a workload has few versions at first: the last three quarters of its steps, in BINS
parts. It is an extrapolation: predictions made from it are compared with what came of them, and corrected (correction.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BINS = 8
SKIPPED = 0.25
"""Share of the steps at the beginning that are left out: what is learnt there is no sign of what more rows bring."""
QUANTILES = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""95 % quantiles of Student's t with 1 to 10 degrees of freedom; BINS points have 6."""
Point = tuple[float, float]
"""(tokens or rows so far, measurement)."""


@dataclass(frozen=True)
class Rise:
    """Rise a doubling, in the measurement's unit. error: standard error; n: points."""

    value: float
    error: float
    n: int

    @property
    def low(self) -> float:
        """Lower end of the one-sided 95 % interval."""
        return self.value - QUANTILES[min(len(QUANTILES), max(1, self.n - 2)) - 1] * self.error


def points_of(metrics: Path, names: Sequence[str]) -> list[Point]:
    """Points of the first measurement that has at least three. A file that is missing or damaged gives none."""
    try:
        lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError):
        return []
    tokens, so_far = [], 0.0
    for line in lines:
        so_far += line.get("tokens") or 0
        tokens.append(so_far)
    for name in names:
        points = [(at, float(line[name])) for at, line in zip(tokens, lines, strict=True)
                  if isinstance(line.get(name), int | float) and math.isfinite(line[name]) and at > 0]
        points = points[int(len(points) * SKIPPED):] if len(points) >= 2 * BINS else points
        if len(points) >= 3:
            return _binned(points)
    return []


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


def _binned(points: Sequence[Point]) -> list[Point]:
    if len(points) < 2 * BINS:
        return list(points)
    size = len(points) / BINS
    parts = [points[round(place * size):round((place + 1) * size)] for place in range(BINS)]
    return [(part[-1][0], sum(y for _, y in part) / len(part)) for part in parts]

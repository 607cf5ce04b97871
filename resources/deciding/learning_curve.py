"""The learning curve of a training, read from its metrics.jsonl.

    points = points_of(directory / "metrics.jsonl", ("validation_expected_tau", "expected_tau"))
    found = rise_a_doubling(points)            # model_ops.training.learning_curve: Rise(value=0.12, error=0.02, n=8)

Read from one training's own metrics, since a workload has few versions at first: the last three quarters of its measurements,
in BINS parts if there are at least two for each. It is an extrapolation: predictions made from it are compared with what came
of them, and corrected (correction.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from model_ops.training.learning_curve import Point

BINS = 8
SKIPPED = 0.25
"""Share of the measurements at the beginning that are left out: what is learnt there is no sign of what more rows bring."""
LEAST = 3
"""Points that a slope with an error needs."""


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
        points = points[min(int(len(points) * SKIPPED), max(0, len(points) - LEAST)):]
        if len(points) >= LEAST:
            return _binned(points)
    return []


def _binned(points: Sequence[Point]) -> list[Point]:
    """Means of each part, of the measurements and of the logarithms of the tokens: a line in the logarithm stays one."""
    if len(points) < 2 * BINS:
        return list(points)
    size = len(points) / BINS
    parts = [points[round(place * size):round((place + 1) * size)] for place in range(BINS)]
    return [(math.exp(sum(math.log(at) for at, _ in part) / len(part)), sum(y for _, y in part) / len(part)) for part in parts]

"""How far the counts of two groups of sessions are from each other. Pure functions over many draws at once.

    population_stability(chosen, rest)        # PSI: 0 means the same shares
    rise(chosen, rest)                        # share of the first column in `chosen`, minus that in `rest`

chosen, rest: sums over sessions [draws, categories]. Results: [draws]. A group without any count
has no shares: then nothing differs (0).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float

SMOOTHING = 0.5
"""Added to every count, so that a category that a group lacks has a finite logarithm."""

Counts = Float[np.ndarray, "draws categories"]
Values = Float[np.ndarray, " draws"]
Kind = Literal["shares", "rise", "fall"]
"""shares: any change of the shares of the categories. rise, fall: the share of the first category, in one direction."""


def population_stability(chosen: Counts, rest: Counts) -> Values:
    """Population stability index: sum over categories of (p - q) ln(p / q), the symmetric Kullback-Leibler divergence."""
    p, q = _shares(chosen, SMOOTHING), _shares(rest, SMOOTHING)
    return ((p - q) * (np.log(p) - np.log(q))).sum(axis=1) * _both(chosen, rest)


def rise(chosen: Counts, rest: Counts) -> Values:
    """By how much the share of the first category is higher in `chosen`, from -1 to 1."""
    return (_shares(chosen)[:, 0] - _shares(rest)[:, 0]) * _both(chosen, rest)


def fall(chosen: Counts, rest: Counts) -> Values:
    """By how much the share of the first category is lower in `chosen`, from -1 to 1."""
    return -rise(chosen, rest)


STATISTICS: dict[Kind, Callable[[Counts, Counts], Values]] = {"shares": population_stability, "rise": rise, "fall": fall}


def squared(values: Values, kind: Kind) -> Values:
    """The values on the scale of a variance. A PSI is on it already, since it grows with the square of a change."""
    return values if kind == "shares" else values**2


def _shares(counts: Counts, more: float = 0.0) -> Counts:
    counts = counts + more
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), np.finfo(float).tiny)


def _both(chosen: Counts, rest: Counts) -> Values:
    """1 where both groups have counts, else 0."""
    return ((chosen.sum(axis=1) > 0) & (rest.sum(axis=1) > 0)).astype(float)

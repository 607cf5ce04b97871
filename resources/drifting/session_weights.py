"""Gives every session the same weight in a test, however many rows it has.

    weighted = sessions_alike(counts, columns)         # the columns of each test sum to 1 in every session that it counts in

A test compares means over sessions. Counted by rows, few long sessions would decide: their number varies much from day to
day, and a quarter of the sessions, of one row each among sessions of twenty, would be one row in sixty. A session in which a
test has nothing to count stays at 0 and takes no part in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from resources.drifting.permutation import Columns


def sessions_alike(
    counts: Float[np.ndarray, "sessions columns"], columns: Sequence[Columns]
) -> Float[np.ndarray, "sessions columns"]:
    """The counts as shares of each session."""
    weighted = counts.astype(float)
    for each in columns:
        part = each.of(weighted)
        part /= np.maximum(part.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    return weighted

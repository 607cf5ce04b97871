"""How near prompts lie to those of the reference's vocabulary days, in the space of an embedding model.

    usual = usual_similarity(known, sessions)              # what 19 of 20 prompts of the vocabulary reach
    far = is_far(vectors, known, usual)                    # prompts whose nearest known one is less similar than that

vectors, known: of length 1. Similarity is the cosine. Exact nearest neighbours, in blocks of bounded memory.

How many are far is counted by session and tested like every other test (permutation.py): the bound is made from the vocabulary
alone, so sessions of the reference's other days and of a window are exchangeable as long as nothing changes.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float32, Int64

FAR = 0.05
"""Share of the vocabulary's prompts that lie further from those of other sessions than the bound."""
ROUNDING = 1e-3
"""Similarities that differ by less are alike: vectors are kept in half precision."""
BLOCK = 512
"""Rows that are compared at a time."""
SAMPLE = 2_048
"""Most prompts of the vocabulary that the bound is made from, at even steps."""

Vectors = Float32[np.ndarray, "rows hidden"]


def nearest(vectors: Vectors, known: Vectors) -> Float32[np.ndarray, " rows"]:
    """The highest similarity of each row to a known one. Raises ValueError without known ones."""
    if not len(known):
        raise ValueError("there is nothing known to be near to")
    found = [(vectors[first : first + BLOCK] @ known.T).max(axis=1) for first in range(0, len(vectors), BLOCK)]
    return np.concatenate(found) if found else np.zeros(0, np.float32)


def usual_similarity(known: Vectors, sessions: Int64[np.ndarray, " rows"]) -> float:
    """The similarity to the nearest prompt of another session that all but FAR of the known ones reach. -1 where all are of one
    session: then nothing is far."""
    chosen = np.unique(np.linspace(0, len(known) - 1, min(len(known), SAMPLE)).astype(np.int64)) if len(known) else []
    found = []
    for first in range(0, len(chosen), BLOCK):
        rows = chosen[first : first + BLOCK]
        similar = known[rows] @ known.T
        similar[sessions[rows][:, None] == sessions[None, :]] = -1.0
        found.append(similar.max(axis=1))
    return float(np.quantile(np.concatenate(found), FAR)) if found else -1.0


def is_far(vectors: Vectors, known: Vectors, usual: float) -> Bool[np.ndarray, " rows"]:
    """Which rows are less similar to every known one than the bound."""
    return nearest(vectors, known) < usual - ROUNDING

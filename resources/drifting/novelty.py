"""The share of word n-grams that the reference's vocabulary days never had.

    known = vocabulary(texts, size=3)                        # sorted hashes, each once
    new, old = novelty(texts, known, size=3)                 # n-grams of each text that are new, and that are known

A text with fewer words than an n-gram has none. Texts are compared by hashes of their words (resources.curating.shingles).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
from jaxtyping import Int64, UInt64

from resources.curating.shingles import ngrams, word_hashes

Texts: TypeAlias = pa.Array | pa.ChunkedArray


def vocabulary(texts: Texts, size: int) -> UInt64[np.ndarray, " known"]:
    """Hashes of the n-grams of all texts, sorted."""
    return np.unique(ngrams(word_hashes(texts), size).values)


def novelty(
    texts: Texts, known: UInt64[np.ndarray, " known"], size: int
) -> tuple[Int64[np.ndarray, " texts"], Int64[np.ndarray, " texts"]]:
    """Number of each text's n-grams that are not in `known`, and of those that are."""
    grams = ngrams(word_hashes(texts), size)
    place = np.searchsorted(known, grams.values)
    is_known = np.zeros(len(grams.values), dtype=np.int64)
    inside = place < len(known)
    is_known[inside] = known[place[inside]] == grams.values[inside]
    sums = np.concatenate([[0], np.cumsum(is_known)])
    old = sums[grams.offsets[1:]] - sums[grams.offsets[:-1]]
    return np.diff(grams.offsets) - old, old

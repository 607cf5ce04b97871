"""MinHash signatures of shingled texts (Broder 1997), in numpy.

    signatures(ngrams(word_hashes(texts), 5), hashes=100)     # pa.ListArray of int64: 100 numbers, or none

Number k of a signature is the least value of the permutation h -> (a_k h + b_k) mod 2**32, a_k odd, over the text's
shingles; two texts agree in it with a probability equal to their Jaccard similarity. A text without shingles (fewer
words than a shingle has) gets an empty signature: too little text to call two rows nearly the same, so such rows meet
as exact duplicates only.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from jaxtyping import UInt32

from resources.shingles import Ragged, mix

_GROUP = 1 << 17
"""Shingles worked on at a time: small enough to stay in a core's cache."""


def signatures(shingles: Ragged, hashes: int) -> pa.ListArray:
    """The signature of each text: `hashes` numbers below 2**32, none where the text has no shingle."""
    multipliers = (mix(np.arange(1, hashes + 1, dtype=np.uint64)) >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
    summands = (mix(np.arange(10_001, hashes + 10_001, dtype=np.uint64)) >> np.uint64(32)).astype(np.uint32)
    filled = np.flatnonzero(shingles.lengths)
    starts = shingles.offsets[filled]
    ends = shingles.offsets[filled + 1]
    values = (shingles.values >> np.uint64(32)).astype(np.uint32)
    least = np.empty((len(filled), hashes), dtype=np.uint32)
    first = 0
    while first < len(filled):
        last = max(int(np.searchsorted(ends, starts[first] + _GROUP, side="right")), first + 1)
        _least(
            values[starts[first] : ends[last - 1]], starts[first:last] - starts[first], multipliers, summands,
            least[first:last],
        )
        first = last
    lengths = np.zeros(len(shingles.lengths), dtype=np.int64)
    lengths[filled] = hashes
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(least.reshape(-1).astype(np.int64)))


def _least(
    values: UInt32[np.ndarray, " shingles"],
    starts: np.ndarray,
    multipliers: UInt32[np.ndarray, " hashes"],
    summands: UInt32[np.ndarray, " hashes"],
    into: UInt32[np.ndarray, "texts hashes"],
) -> None:
    permuted = np.empty_like(values)
    for k in range(len(multipliers)):
        np.multiply(values, multipliers[k], out=permuted)
        permuted += summands[k]
        into[:, k] = np.minimum.reduceat(permuted, starts)

"""Words and word n-grams of many texts as 64-bit hashes, in numpy, without a Python loop over words.

    texts = pa.array(["the quick brown fox", "jumps over"], pa.large_string())
    words = word_hashes(texts)            # Ragged: values uint64[total words], offsets int64[texts + 1]
    shingles = ngrams(words, 5)           # Ragged: one hash per run of 5 words that lies inside one text

A word is a run of ASCII letters, digits and underscores and of any bytes above 127; everything else separates.
`sql/clean/macros/words_of.sql` lower-cases a text and puts spaces where other scripts need them. The hashes depend on
the words alone, not on the machine, the library or the place in the text: they may be stored.

A word's hash is a polynomial over its bytes, sum table[byte_i] * B**i mod 2**64 (Karp, Rabin 1987), read off prefix
sums over the whole buffer, then mixed by the finaliser of MurmurHash3 (Appleby), so that every bit counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int64, UInt8, UInt64

_BASE = 0x9E3779B97F4A7C15
"""Odd, so that it has an inverse modulo 2**64: the golden ratio's first 64 bits."""

_WORD_BASE = 0xD1B54A32D192ED03

CHUNK_BYTES = 1 << 22
"""Texts are hashed in groups of about this many bytes; the working memory is some forty times that."""


@dataclass(frozen=True)
class Ragged:
    """A list of numbers for each text: text i owns values[offsets[i]:offsets[i + 1]]."""

    values: UInt64[np.ndarray, " total"]
    offsets: Int64[np.ndarray, " texts_plus_one"]

    @property
    def lengths(self) -> Int64[np.ndarray, " texts"]:
        return np.diff(self.offsets)


def mix(values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """MurmurHash3's 64-bit finaliser: a bijection in which every input bit moves every output bit."""
    values = values ^ (values >> np.uint64(33))
    values *= np.uint64(0xFF51AFD7ED558CCD)
    values ^= values >> np.uint64(33)
    values *= np.uint64(0xC4CEB9FE1A85EC53)
    values ^= values >> np.uint64(33)
    return values


_BYTE_VALUES = mix(np.arange(1, 257, dtype=np.uint64))
_IS_WORD: Bool[np.ndarray, " 256"] = np.zeros(256, dtype=bool)
_IS_WORD[[*b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", *range(128, 256)]] = True


def _powers(base: int, count: int) -> UInt64[np.ndarray, " count"]:
    factors = np.full(count, base, dtype=np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def word_hashes(texts: pa.Array | pa.ChunkedArray) -> Ragged:
    """The words of each text, in order, as hashes. A null is a text without words."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    texts = texts.cast(pa.large_string()).fill_null("")
    _, place, content = texts.buffers()
    edges = np.frombuffer(place, dtype=np.int64, count=len(texts) + 1, offset=texts.offset * 8) if len(texts) else None
    if edges is None or content is None:
        return Ragged(np.zeros(0, np.uint64), np.zeros(len(texts) + 1, np.int64))
    buffer = np.frombuffer(content, dtype=np.uint8)
    values, counts = [], []
    first = 0
    while first < len(texts):
        last = max(int(np.searchsorted(edges, edges[first] + CHUNK_BYTES, side="right")) - 1, first + 1)
        chunk_values, chunk_counts = _words_of(
            buffer[edges[first] : edges[last]], edges[first : last + 1] - edges[first]
        )
        values.append(chunk_values)
        counts.append(chunk_counts)
        first = last
    return Ragged(np.concatenate(values), np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64))


def _words_of(
    content: UInt8[np.ndarray, " bytes"], edges: Int64[np.ndarray, " texts_plus_one"]
) -> tuple[UInt64[np.ndarray, " words"], Int64[np.ndarray, " texts"]]:
    size = len(content)
    if size == 0:
        return np.zeros(0, np.uint64), np.zeros(len(edges) - 1, np.int64)
    inside = _IS_WORD[content]
    begins = inside.copy()
    begins[1:] &= ~inside[:-1]
    ends = inside.copy()
    ends[:-1] &= ~inside[1:]
    filled = edges[:-1] < edges[1:]
    text_starts, text_ends = edges[:-1][filled], edges[1:][filled] - 1
    begins[text_starts] = inside[text_starts]
    ends[text_ends] = inside[text_ends]
    starts, stops = np.flatnonzero(begins), np.flatnonzero(ends)
    terms = _BYTE_VALUES[content]
    terms *= _powers(_BASE, size)
    sums = np.cumsum(terms, dtype=np.uint64)
    inverse = pow(_BASE, -1, 1 << 64)
    hashes = (sums[stops] - sums[starts] + terms[starts]) * _powers(inverse, size)[starts]
    bounds = np.searchsorted(starts, edges)
    return mix(hashes), np.diff(bounds)


def ngrams(words: Ragged, size: int) -> Ragged:
    """One hash for each run of `size` words within one text; a text of fewer words has none."""
    lengths = words.lengths
    counts = np.maximum(lengths - (size - 1), 0)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    total = len(words.values)
    if total < size or not offsets[-1]:
        return Ragged(np.zeros(0, np.uint64), offsets)
    runs = words.values[: total - size + 1].copy()
    for step in range(1, size):
        runs *= np.uint64(_WORD_BASE)
        runs += words.values[step : total - size + 1 + step]
    left = np.repeat(words.offsets[1:], lengths)[: len(runs)] - np.arange(len(runs))
    return Ragged(mix(runs[left >= size]), offsets)


_ANSWER = np.uint64(0xA5A5A5A5_5A5A5A5A)


def turn_shingles(questions: pa.ChunkedArray, answers: pa.ChunkedArray, size: int) -> Ragged:
    """The n-grams of each question and of its answer, told apart.

    The same words asked and answered are different shingles: "finish this half" and "write it all" end in the same
    text, and are not the same example.
    """
    count = len(questions)
    both = pa.concat_arrays([_one_array(questions), _one_array(answers)])
    order = np.arange(2 * count).reshape(2, count).T.reshape(-1)
    runs = ngrams(word_hashes(both.take(pa.array(order))), size)
    is_answer = np.repeat(np.arange(2 * count) % 2 == 1, runs.lengths)
    return Ragged(np.where(is_answer, runs.values ^ _ANSWER, runs.values), runs.offsets[::2])


def _one_array(texts: pa.ChunkedArray) -> pa.LargeStringArray:
    return texts.cast(pa.large_string()).combine_chunks()

"""Words and word n-grams of many texts as 64-bit hashes, which depend on the words alone and may be stored.

words = word_hashes(pa.array(["the quick brown fox", "jumps over"], pa.large_string()))
grams = ngrams(words, 8)                         # one hash per run of 8 words inside one text"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int64, UInt8, UInt64

from resources.curating.alphabet import alphabet

_GRAM = 0xD1B54A32D192ED03

GROUP_BYTES = 1 << 22
"""Bytes of text per group; a group takes about eight times that in memory."""


@dataclass(frozen=True)
class RaggedLists:
    """A list of numbers for each text: text i owns values[offsets[i]:offsets[i + 1]]."""

    values: UInt64[np.ndarray, " total"]
    offsets: Int64[np.ndarray, " texts_plus_one"]

    @property
    def lengths(self) -> Int64[np.ndarray, " texts"]:
        return np.diff(self.offsets)

    @classmethod
    def of_groups(cls, groups: list[tuple[np.ndarray, np.ndarray]]) -> RaggedLists:
        values = np.concatenate([np.zeros(0, np.uint64), *(values for values, _ in groups)])
        counts = np.concatenate([np.zeros(0, np.int64), *(counts for _, counts in groups)])
        return cls(values, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


@dataclass(frozen=True)
class TextBuffer:
    """Texts for the compiled loops: UTF-8 in Unicode NFC, and the offset of each text."""

    content: UInt8[np.ndarray, " bytes"]
    edges: Int64[np.ndarray, " texts_plus_one"]

    def part(self, first: int, last: int) -> TextBuffer:
        """Texts first..last-1, without copying."""
        return TextBuffer(self.content, self.edges[first : last + 1])


def text_buffer(texts: pa.Array | pa.ChunkedArray) -> TextBuffer:
    """A column of texts for the loops, in NFC. A null is a text without words."""
    from resources.curating.word_kernels import unsettled

    texts = _one_array(texts)
    buffer = _buffer_of(texts)
    doubtful = unsettled(buffer.content, buffer.edges, alphabet())
    if doubtful.any():
        mask = pa.array(doubtful)
        settled = pc.utf8_normalize(texts.filter(mask), form="NFC")
        buffer = _buffer_of(pc.replace_with_mask(texts, mask, settled))
    return buffer


def plain_buffer(texts: pa.Array | pa.ChunkedArray) -> TextBuffer:
    """A column of texts as it is, without normalisation. A null is an empty text."""
    return _buffer_of(_one_array(texts))


def _one_array(texts: pa.Array | pa.ChunkedArray) -> pa.LargeStringArray:
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    return texts.cast(pa.large_string()).fill_null("")


def _buffer_of(texts: pa.LargeStringArray) -> TextBuffer:
    if not len(texts):
        return TextBuffer(np.frombuffer(b"\0", dtype=np.uint8)[:0], np.frombuffer(bytes(8), dtype=np.int64))
    _, place, content = texts.buffers()
    edges = np.frombuffer(place, dtype=np.int64, count=len(texts) + 1, offset=texts.offset * 8)
    content = np.frombuffer(content, dtype=np.uint8) if content else np.frombuffer(b"\0", dtype=np.uint8)[:0]
    return TextBuffer(content, edges)


def threads() -> int:
    """Number of threads of the loops: the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_groups(work: Callable[..., Any], *columns: TextBuffer) -> Iterator[Any]:
    """Yields the results of `work(first, *buffers)` on groups of rows, on threads, in row order; at most two groups each."""
    total = np.sum([column.edges for column in columns], axis=0)
    bounds = [0]
    while bounds[-1] < len(total) - 1:
        last = int(np.searchsorted(total, total[bounds[-1]] + GROUP_BYTES, side="right")) - 1
        bounds.append(max(last, bounds[-1] + 1))
    groups = list(itertools.pairwise(bounds))
    with ThreadPoolExecutor(max(1, min(threads(), len(groups)))) as pool:
        ahead = 2 * threads()
        waiting = []
        for first, last in groups:
            waiting.append(pool.submit(work, first, *(column.part(first, last) for column in columns)))
            if len(waiting) > ahead:
                yield waiting.pop(0).result()
        for running in waiting:
            yield running.result()


def word_hashes(texts: pa.Array | pa.ChunkedArray) -> RaggedLists:
    """The words of each text, in order, as hashes. A null is a text without words."""
    from resources.curating.word_kernels import words_of_texts

    def work(_: int, texts: TextBuffer) -> tuple[np.ndarray, np.ndarray]:
        return words_of_texts(texts.content, texts.edges, alphabet())

    return RaggedLists.of_groups(list(in_groups(work, text_buffer(texts))))


def ngrams(words: RaggedLists, size: int) -> RaggedLists:
    """One hash per run of `size` words within a text; a text with fewer words has none."""
    lengths = words.lengths
    counts = np.maximum(lengths - (size - 1), 0)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    total = len(words.values)
    if total < size or not offsets[-1]:
        return RaggedLists(np.zeros(0, np.uint64), offsets)
    runs = words.values[: total - size + 1].copy()
    for step in range(1, size):
        runs *= np.uint64(_GRAM)
        runs += words.values[step : total - size + 1 + step]
    left = np.repeat(words.offsets[1:], lengths)[: len(runs)] - np.arange(len(runs))
    return RaggedLists(_mix(runs[left >= size]), offsets)


def shingle_sets(questions: TextBuffer, answers: TextBuffer, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each turn's distinct word n-grams and its words, as (values, counts) of one group of rows after another. A row has three
    counts: n-grams of the question, n-grams of the answer, words of both. The same words in question and answer are different
    shingles: "finish this text" and "write it all" end in the same text and are not the same example."""
    from resources.curating import word_kernels

    def work(_: int, asked: TextBuffer, said: TextBuffer) -> tuple[np.ndarray, np.ndarray]:
        values, counts = word_kernels.shingle_sets(asked.content, asked.edges, said.content, said.edges, size, alphabet())
        return values, counts.reshape(-1)

    return in_groups(work, questions, answers)


def _mix(values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """word_kernels.mix on an array."""
    values = values ^ (values >> np.uint64(33))
    values *= np.uint64(0xFF51AFD7ED558CCD)
    values ^= values >> np.uint64(33)
    values *= np.uint64(0xC4CEB9FE1A85EC53)
    values ^= values >> np.uint64(33)
    return values

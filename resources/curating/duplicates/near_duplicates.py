"""Groups near-duplicate turns: banding proposes pairs (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, 3.4), their
exact Jaccard similarity decides. Text that different examples share is no evidence of a copy: a shingle of a question does not
count where it comes with different answers, or where one question has a stretch of words that the other lacks and the answers
say less than that (a label). What differs always counts. The answers of near copies also have that share of words in common,
and their questions half of it in shingles. Buckets are those of the shingles that count; in a crowded one a row is compared
with the first BEST rows and the BEFORE rows before it, so ten thousand copies end in one group. Rows are given best first; a
group is named by its best row.

    links = group_turns(questions, answers, NearDuplicates())          # all steps, for texts in memory
"""

from __future__ import annotations

import mmap
import tempfile
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float64, Int64, UInt32

from resources.curating.curation import NearDuplicates
from resources.curating.duplicates.minhash import permutations, signatures
from resources.curating.shingles import RaggedLists, shingle_sets, text_buffer

BEST, BEFORE = 8, 32
"""In a bucket, a row is compared with the first BEST rows and with the BEFORE rows before it."""
STRETCH = 2
"""Words in a row in which the questions of near copies may differ where their answers say less than that."""
MARKED_AT_A_TIME = 1 << 25
"""Shingles whose common ones are looked for at a time; each takes up to 32 bytes."""


@dataclass(frozen=True)
class Links:
    """Result by row: the best row of its group, and its highest similarity to a row of the group (0: none)."""

    best: Int64[np.ndarray, " rows"]
    likeness: Float64[np.ndarray, " rows"]
    pairs: Int64[np.ndarray, "links 2"]
    """The pairs that joined two groups, all of them at or above the threshold."""


def band_hashes(signatures: pa.ListArray, bands: int) -> UInt32[np.ndarray, "rows bands"]:
    """The bands of signatures with one stamp, from `resources.curating.duplicates.minhash`; empty signatures are left out."""
    numbers = signatures.flatten().to_numpy(zero_copy_only=False)
    return numbers.reshape(-1, bands + 1)[:, 1:].view(np.uint32)


def share_a_bucket(bands: UInt32[np.ndarray, "rows bands"]) -> Bool[np.ndarray, " rows"]:
    """The rows that share a band's hash with another row."""
    from resources.curating.word_kernels import shares_bucket

    shared = np.zeros(len(bands), dtype=bool)
    for band in range(bands.shape[1]):
        shares_bucket(_buckets(bands[:, band], np.arange(len(bands), dtype=np.uint64)), shared)
    return shared


def link(
    bands: UInt32[np.ndarray, "rows bands"], suspects: Bool[np.ndarray, " rows"], sets: RaggedLists, settings: NearDuplicates
) -> Links:
    """Groups the rows. `sets` has the three lists of each suspect (`shingle_sets`), in row order."""
    from resources.curating.duplicates.union_find import settle
    from resources.curating.word_kernels import link_buckets, sketch_sets

    count = len(bands)
    parents = np.arange(count)
    likeness = np.zeros(count)
    rows = np.flatnonzero(suspects)
    set_of = np.zeros(count, dtype=np.int64)
    set_of[rows] = np.arange(len(rows))
    common = common_shingles(sets, settings)
    own = bands[rows]
    sketch_sets(sets.values, sets.offsets, common, own, *permutations(settings))
    pairs = np.empty((len(rows), 2), dtype=np.int64)
    joined = 0
    for band in range(bands.shape[1]):
        joined += link_buckets(
            _buckets(own[:, band], rows.astype(np.uint64)),
            set_of,
            sets.offsets,
            sets.values,
            common,
            settings.similarity,
            settings.ngram - 1 + STRETCH,
            BEST,
            BEFORE,
            parents,
            likeness,
            pairs[joined:],
        )
    settle(parents)
    return Links(parents, likeness, pairs[:joined])


def common_shingles(sets: RaggedLists, settings: NearDuplicates) -> Bool[np.ndarray, " total"]:
    """Marks the shingles of questions that different examples share: instructions, passages. They say nothing about a copy."""
    from resources.curating.word_kernels import mark_common

    common = np.zeros(len(sets.values), dtype=bool)
    turns = -(-len(sets.values) // MARKED_AT_A_TIME) or 1
    edge = settings.ngram - 1
    for turn in range(turns):
        mark_common(sets.values, sets.offsets, turn, turns, settings.similarity, edge, edge + STRETCH, common)
    return common


def group_turns(questions: pa.Array | pa.ChunkedArray, answers: pa.Array | pa.ChunkedArray, settings: NearDuplicates) -> Links:
    """Groups turns by their texts, best first. A turn without shingles is a group of its own."""
    signed = signatures(questions, answers, settings)
    filled = np.diff(signed.offsets.to_numpy()) > 0
    bands = band_hashes(signed, settings.bands)
    suspects = share_a_bucket(bands)
    mask = np.zeros(len(signed), dtype=bool)
    mask[np.flatnonzero(filled)[suspects]] = True
    chosen = pa.array(mask)
    with ShingleFile() as sets:
        asked, said = text_buffer(questions.filter(chosen)), text_buffer(answers.filter(chosen))
        for group in shingle_sets(asked, said, settings.ngram):
            sets.add(*group)
        links = link(bands, suspects, sets.read(), settings)
    rows = np.flatnonzero(filled)
    best, likeness = np.arange(len(signed)), np.zeros(len(signed))
    best[rows], likeness[rows] = rows[links.best], links.likeness
    return Links(best, likeness, rows[links.pairs])


def _buckets(hashes: UInt32[np.ndarray, " rows"], rows: np.ndarray) -> np.ndarray:
    keys = (hashes.astype(np.uint64) << np.uint64(32)) | rows
    keys.sort()
    return keys


class ShingleFile:
    """Shingle sets in a temporary file, mapped into memory: the sets of all suspects need not fit in memory."""

    def __enter__(self) -> ShingleFile:
        self._file = tempfile.TemporaryFile(prefix="millrace-shingles-")
        self._counts: list[np.ndarray] = []
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, values: np.ndarray, counts: np.ndarray) -> None:
        self._file.write(values.data)
        self._counts.append(counts)

    def read(self) -> RaggedLists:
        """All sets, in the order in which they were added."""
        self._file.flush()
        counts = np.concatenate([np.zeros(0, np.int64), *self._counts])
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        if not offsets[-1]:
            return RaggedLists(np.frombuffer(bytes(8), dtype=np.uint64)[:0], offsets)
        return RaggedLists(np.frombuffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint64), offsets)

"""Groups near-duplicate turns: banding proposes pairs (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, 3.4), their
exact Jaccard similarity decides. A shingle of a question does not count where it comes with different answers, or where one
question has a stretch of words that the other lacks and the answers say less than that (a label); what differs always counts.
In a crowded bucket a row is compared with the first BEST rows and the BEFORE rows before it. Rows are given best first; a group
is named by its best row."""

from __future__ import annotations

import hashlib
import mmap
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float64, Int64, UInt32

from resources.curating.alphabet import alphabet
from resources.curating.curation import NearDuplicates
from resources.curating.shingles import RaggedLists, TextBuffer, in_groups, shingle_sets, text_buffer
from resources.lake import rows, run

_VERSION = 2
"""Version of words, shingles and permutations: a new one gives new hashes."""


def stamp(settings: NearDuplicates) -> int:
    """The first number of every signature made with these settings."""
    settings_text = f"{_VERSION} {settings.ngram} {settings.bands} {settings.rows}".encode()
    return int.from_bytes(hashlib.sha256(settings_text).digest()[:4], "little", signed=True)


def permutations(settings: NearDuplicates) -> tuple[UInt32[np.ndarray, " hashes"], UInt32[np.ndarray, " hashes"]]:
    """Multipliers and summands."""
    generator = np.random.Generator(np.random.PCG64(1997))
    multipliers = generator.integers(0, 1 << 32, settings.hashes, dtype=np.uint32) | np.uint32(1)
    return multipliers, generator.integers(0, 1 << 32, settings.hashes, dtype=np.uint32)


def signatures(
    questions: pa.Array | pa.ChunkedArray, answers: pa.Array | pa.ChunkedArray, settings: NearDuplicates
) -> pa.ListArray:
    """The signature of each turn: the settings' stamp and `settings.bands` hashes; empty without shingles."""
    from resources.curating.word_kernels import sketch

    multipliers, summands = permutations(settings)

    def work(_: int, asked: TextBuffer, said: TextBuffer) -> tuple[np.ndarray, np.ndarray]:
        return sketch(
            asked.content,
            asked.edges,
            said.content,
            said.edges,
            settings.ngram,
            alphabet(),
            multipliers,
            summands,
            settings.bands,
        )

    groups = list(in_groups(work, text_buffer(questions), text_buffer(answers)))
    bands = np.concatenate([np.zeros((0, settings.bands), np.uint32), *(hashes for hashes, _ in groups)])
    filled = np.concatenate([np.zeros(0, bool), *(filled for _, filled in groups)])
    numbers = np.empty((int(filled.sum()), settings.bands + 1), dtype=np.int32)
    numbers[:, 0] = stamp(settings)
    numbers[:, 1:] = bands[filled].view(np.int32)
    offsets = np.concatenate([[0], np.cumsum(np.where(filled, settings.bands + 1, 0))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(numbers.reshape(-1)))


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
    """The bands of signatures with one stamp; empty signatures are left out."""
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
        self._file.flush()
        counts = np.concatenate([np.zeros(0, np.int64), *self._counts])
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        if not offsets[-1]:
            return RaggedLists(np.frombuffer(bytes(8), dtype=np.uint64)[:0], offsets)
        return RaggedLists(np.frombuffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint64), offsets)


NEAR_COPIES = pa.schema(
    [("row_id", pa.string()), ("rule", pa.string()), ("held_id", pa.string()), ("similarity", pa.float64())]
)
TRAIN = 2
"""Place of training rows; rows of a lower place (test, then validation) are kept instead of them."""
_COMPARED = pa.schema([("row_id", pa.string()), ("place", pa.int64())])


def near_copies(connection: duckdb.DuckDBPyConnection, settings: NearDuplicates) -> pa.Table:
    """Rows to leave out, with the row that each is a copy of; where curation keeps near duplicates, of held-out rows only."""
    seeds = rows(connection, "composing/near_copies/seed_ids")
    if not len(seeds) and settings.enabled:
        return NEAR_COPIES.empty_table()
    signed = _signed_rows(connection, settings)
    copies = list(_repeated_seeds(connection, seeds, signed, settings)) if len(seeds) else []
    if not settings.enabled:
        copies += _across_splits(connection, signed, settings)
    return pa.Table.from_pylist(copies, schema=NEAR_COPIES)


class _Signed:
    def __init__(self, table: pa.Table, settings: NearDuplicates):
        self.ids, self.conversations = table["row_id"], table["conversation_id"]
        self.places = table["place"].to_numpy().astype(np.int64)
        self.bands = band_hashes(table["signature"].combine_chunks(), settings.bands)


def _signed_rows(connection: duckdb.DuckDBPyConnection, settings: NearDuplicates) -> _Signed:
    table = rows(connection, "composing/near_copies/signed_rows")
    lists = table["signature"].combine_chunks()
    marks = np.zeros(len(lists), dtype=np.int64)
    if len(lists):
        marks = lists.flatten().to_numpy(zero_copy_only=False)[lists.offsets.to_numpy()[:-1] - lists.offsets[0].as_py()]
    return _Signed(table.filter(pa.array(marks == stamp(settings))), settings)


def _repeated_seeds(
    connection: duckdb.DuckDBPyConnection, seeds: pa.Table, signed: _Signed, settings: NearDuplicates
) -> Iterator[dict[str, Any]]:
    turns = _turns(connection, seeds["row_id"])
    bands = band_hashes(signatures(turns["new_turn"], turns["answer"], settings), settings.bands)
    like = np.flatnonzero(_share_a_band(signed.bands, bands))
    traffic = signed.ids.take(pa.array(like))
    links = _linked(connection, [traffic, seeds["row_id"]], settings)
    for row in range(len(traffic), len(traffic) + len(seeds)):
        best = int(links.best[row])
        of_traffic = best < len(traffic)
        if best == row or not (settings.enabled or (of_traffic and signed.places[like[best]] < TRAIN)):
            continue
        yield {
            "row_id": seeds["row_id"][row - len(traffic)].as_py(),
            "rule": "near_duplicate_of_traffic" if of_traffic else "near_duplicate_of_seed",
            "held_id": (traffic[best] if of_traffic else seeds["row_id"][best - len(traffic)]).as_py(),
            "similarity": float(links.likeness[row]),
        }


def _across_splits(
    connection: duckdb.DuckDBPyConnection, signed: _Signed, settings: NearDuplicates
) -> Iterator[dict[str, Any]]:
    """Conversations with a turn that is nearly one of a more protected split."""
    held = signed.places < TRAIN
    like = np.zeros(len(held), dtype=bool)
    like[~held] = _share_a_band(signed.bands[~held], signed.bands[held])
    like[held] = _share_a_band(signed.bands[held], np.concatenate([signed.bands[like], signed.bands[held]]))
    chosen = np.flatnonzero(like)  # in order of place: the first row of a group is its most protected
    links = _linked(connection, [signed.ids.take(pa.array(chosen))], settings)
    for row, best in enumerate(links.best.tolist()):
        if signed.places[chosen[best]] < signed.places[chosen[row]]:
            yield {
                "row_id": signed.conversations[int(chosen[row])].as_py(),
                "rule": "near_copy_of_held_out",
                "held_id": signed.conversations[int(chosen[best])].as_py(),
                "similarity": float(links.likeness[row]),
            }


def _share_a_band(bands: np.ndarray, others: np.ndarray) -> np.ndarray:
    shared = np.zeros(len(bands), dtype=bool)
    for band in range(bands.shape[1] if len(others) else 0):
        shared |= np.isin(bands[:, band], others[:, band])
    return shared


def _linked(connection: duckdb.DuckDBPyConnection, ids: list[pa.ChunkedArray], settings: NearDuplicates) -> Links:
    """Groups the turns of rows; of a group the first row is the best."""
    turns = _turns(connection, pa.chunked_array([chunk for each in ids for chunk in each.chunks], type=pa.string()))
    return group_turns(turns["new_turn"], turns["answer"], settings)


def _turns(connection: duckdb.DuckDBPyConnection, ids: pa.ChunkedArray) -> pa.Table:
    connection.register("compared", pa.table({"row_id": ids, "place": np.arange(len(ids))}).cast(_COMPARED))
    run(connection, "composing/near_copies/compared_turns")
    return rows(connection, "composing/near_copies/turns_in_order")

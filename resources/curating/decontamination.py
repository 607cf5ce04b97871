"""Finds rows that contain evaluation items, by n-gram coverage as in open-instruct and GPT-3.

    find_contamination(connection, tables, "math-tutor", settings)      # fills the temp table `contaminated`
    find_items(connection, settings)                                    # the same for any rows, without a lake

A row contains an item (its prompt, or its answer if the answer has at least as many words as the largest n-gram) when the
row's n-grams cover at least the threshold's share of the item's words (Tulu 3: 8-grams and 50 %; GPT-3: 13-grams). An item
shorter than the largest n-gram must occur whole (half of ten words of code is nothing special); one with fewer than four words
must be a whole message, or "yes" would match half the traffic. All messages but the system prompt count, history and answer
too: all are trained on.

Finds are stored by day in the table `contamination`, with a digest of the items and of the day's texts: a day is searched again
only when its rows, the suites or the settings change. A row without interaction_id says that its day was searched.

The connection has the views `cleaned_interactions` and `eval_items`, the table `cleaned_rows` (sql/curating/curate) and the
macros of `resources.curating.clean`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from resources.curating.alphabet import alphabet
from resources.curating.curation import Decontamination
from resources.curating.shingles import Ragged, TextBuffer, in_groups, ngrams, text_buffer, word_hashes
from resources.sql_files import attach_slice, rows, run, stream
from resources.tables import SCHEMAS, Tables

WHOLE_MESSAGE_BELOW = 4
"""Items with fewer words than this must be a whole message."""

_VERSION = 2
"""Version of the search: a new one searches all days again."""


def find_contamination(
    connection: duckdb.DuckDBPyConnection, tables: Tables, workload: str, settings: Decontamination
) -> None:
    """Creates the temp table `contaminated` (interaction_id, suite, item_id, part, share) for all rows of a workload."""
    attach_slice(connection, tables, "contamination", workload)
    searched = _digest(rows(connection, "curating/decontaminate/eval_parts"), settings)
    run(connection, "curating/decontaminate/day_contents")
    run(connection, "curating/decontaminate/days_to_search", searched=searched)
    days = [day for (day,) in run(connection, "curating/decontaminate/days_to_search_listed").fetchall()]
    if not days:
        run(connection, "curating/decontaminate/contaminated_before", searched=searched)
        return
    run(connection, "curating/decontaminate/searched_rows")
    find_items(connection, settings)
    found = rows(connection, "curating/decontaminate/found_by_day", workload=workload, searched=searched)
    tables.replace("contamination", found.cast(SCHEMAS["contamination"]), workload=workload, dt=days)
    run(connection, "curating/decontaminate/add_contaminated_before", searched=searched)


def find_items(connection: duckdb.DuckDBPyConnection, settings: Decontamination) -> None:
    """Searches the rows of the view `searched_rows` (row_id, messages, completion) for `eval_items`.

    Creates the temp table `contaminated` (interaction_id, suite, item_id, part, share); interaction_id is the row's id.
    """
    items, grams = _grams_of_items(rows(connection, "curating/decontaminate/eval_parts"), settings)
    connection.register("items", items)
    connection.register("grams", grams)
    wanted = _Wanted.of(grams)
    hits = [_hits(batch, wanted) for batch in stream(connection, "curating/decontaminate/searched_texts")]
    empty = pa.schema([("row_id", pa.string()), ("gram", pa.uint64())]).empty_table()
    connection.register("hits", pa.concat_tables([empty, *hits]))
    run(connection, "curating/decontaminate/contaminated", threshold=settings.threshold)


def _digest(parts: pa.Table, settings: Decontamination) -> str:
    digest = hashlib.sha256(f"{_VERSION} {settings.ngrams} {settings.threshold}".encode())
    for part in sorted(parts.to_pylist(), key=lambda part: (part["suite"], part["item_id"], part["part"], part["text"])):
        digest.update(repr([part[name] for name in ("suite", "item_id", "part", "text")]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _grams_of_items(parts: pa.Table, settings: Decontamination) -> tuple[pa.Table, pa.Table]:
    """The items, numbered, and their n-grams: gram, size, first word, and whether it must be a whole message."""
    words = word_hashes(parts["text"])
    lengths = words.lengths
    is_answer = pc.equal(parts["part"], "answer").to_numpy(zero_copy_only=False)
    wanted = (lengths > 0) & (~is_answer | (lengths >= max(settings.ngrams)))
    items = pa.table(
        {"item": np.arange(len(parts)), "suite": parts["suite"], "item_id": parts["item_id"], "part": parts["part"]}
    )
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("gram", "item", "words", "size", "start", "whole")}

    def add(runs: Ragged, chosen: np.ndarray, size: int, whole: bool) -> None:
        item = np.repeat(np.arange(len(lengths)), runs.lengths)
        start = np.arange(len(runs.values)) - np.repeat(runs.offsets[:-1], runs.lengths)
        mine = chosen[item]
        columns["gram"].append(runs.values[mine] ^ np.uint64(size))
        columns["item"].append(item[mine])
        columns["words"].append(lengths[item[mine]])
        columns["size"].append(np.full(mine.sum(), size))
        columns["start"].append(start[mine])
        columns["whole"].append(np.full(mine.sum(), whole))

    short = lengths < max(settings.ngrams)
    for size in range(1, max(settings.ngrams)):
        if (chosen := wanted & (lengths == size)).any():
            add(ngrams(words, size), chosen, size, size < WHOLE_MESSAGE_BELOW)
    for size in settings.ngrams:
        add(ngrams(words, size), wanted & ~short, size, False)
    return items, pa.table({name: np.concatenate(parts) for name, parts in columns.items()})


@dataclass(frozen=True)
class _Wanted:
    """The items' n-grams in the form that word_kernels.find_grams takes. N-grams of different sizes have different numbers."""

    sizes: np.ndarray
    whole: np.ndarray
    seen: np.ndarray
    shift: np.uint64
    table: np.ndarray

    @classmethod
    def of(cls, grams: pa.Table) -> _Wanted:
        values = np.unique(grams["gram"].to_numpy())
        sizes, first = np.unique(grams["size"].to_numpy(), return_index=True)
        bits = int(np.clip(np.ceil(np.log2(max(len(values), 1))) + 5, 12, 27))
        shift = np.uint64(64 - bits)
        seen = np.zeros(1 << (bits - 6), dtype=np.uint64)
        high = values >> shift
        np.bitwise_or.at(seen, high >> np.uint64(6), np.uint64(1) << (high & np.uint64(63)))
        from resources.curating.word_kernels import hash_table

        return cls(sizes, grams["whole"].to_numpy()[first], seen, shift, hash_table(values))


def _hits(messages: pa.RecordBatch, wanted: _Wanted) -> pa.Table:
    """The items' n-grams that occur in each row's messages."""
    from resources.curating.word_kernels import find_grams

    def work(first: int, texts: TextBuffer) -> np.ndarray:
        room = 4096
        while True:
            hits = np.empty((room, 2), dtype=np.uint64)
            count = find_grams(
                texts.content, texts.edges, alphabet(), wanted.sizes, wanted.whole, wanted.seen, wanted.shift,
                wanted.table, hits,
            )
            if count <= room:
                hits[:count, 0] += np.uint64(first)
                return hits[:count]
            room = count

    found = np.concatenate([np.zeros((0, 2), np.uint64), *in_groups(work, text_buffer(messages["text"]))])
    row_id = messages["row_id"].take(pa.array(found[:, 0].astype(np.int64))).cast(pa.string())
    return pa.table({"row_id": row_id, "gram": pa.array(found[:, 1], pa.uint64())})

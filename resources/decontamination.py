"""Which rows hold evaluation items: n-gram coverage, as open-instruct and GPT-3's authors did it.

    found = find_contamination(connection, settings)      # fills the temp table `contaminated`

An item (its prompt, and its answer when that has at least the largest n-gram's words) is held by a row when the row's
n-grams cover at least the threshold's share of the item's words (Tulu 3 uses 8-grams and 50 %, GPT-3 13-grams). An
item shorter than the largest n-gram must occur whole (half of ten words of code is nothing special); one of fewer
than four words must be a message of its own, or "yes" would condemn half the traffic. All messages but the system
prompt count, history and answer too: all of it would be trained on.

The connection holds the views `cleaned_interactions` and `eval_items` and the macros of `resources.clean`.
"""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from resources.curation import Decontamination
from resources.shingles import Ragged, ngrams, word_hashes
from resources.sql_files import rows, run, stream

WHOLE_MESSAGE_BELOW = 4
"""Words under which an item counts only where it is a whole message."""

_FILTER_BITS = 24


def find_contamination(connection: duckdb.DuckDBPyConnection, settings: Decontamination) -> None:
    """Leaves the temp table `contaminated` (interaction_id, suite, item_id, part, share)."""
    items, grams = _grams_of_items(rows(connection, "curate/eval_parts"), settings)
    connection.register("items", items)
    connection.register("grams", grams)
    run(connection, "curate/all_as_conversations")
    run(connection, "clean/messages")
    run(connection, "curate/documents")
    hits = [
        _hits(pa.Table.from_batches([batch]), grams) for batch in stream(connection, "curate/document_words")
    ]
    empty = pa.schema([("identity", pa.string()), ("gram", pa.uint64())]).empty_table()
    connection.register("hits", pa.concat_tables([empty, *hits]))
    run(connection, "curate/contaminated", threshold=settings.threshold)


def _grams_of_items(parts: pa.Table, settings: Decontamination) -> tuple[pa.Table, pa.Table]:
    """The items, numbered, and their n-grams: gram, size, first word, and whether it must be a whole message."""
    words = word_hashes(parts["words"])
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
        columns["gram"].append(_of_size(runs.values[mine], size))
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


def _of_size(values: np.ndarray, size: int) -> np.ndarray:
    """Grams of different sizes are different, so that one column can hold them all."""
    return values ^ np.uint64(size)


def _hits(documents: pa.Table, grams: pa.Table) -> pa.Table:
    """Which of the items' grams occur in each document."""
    words = word_hashes(documents["words"])
    found_in, found = [], []
    sizes = grams["size"].to_numpy()
    for size in np.unique(sizes):
        mine = sizes == size
        wanted = np.unique(grams["gram"].to_numpy()[mine])
        whole = bool(grams["whole"].to_numpy()[mine][0])
        runs = ngrams(words, int(size))
        values = _of_size(runs.values, int(size))
        near = np.flatnonzero(_filter(wanted)[values >> np.uint64(64 - _FILTER_BITS)])
        places = near[np.isin(values[near], wanted)]
        document = np.searchsorted(runs.offsets, places, side="right") - 1
        if whole:
            alone = words.lengths[document] == size
            places, document = places[alone], document[alone]
        found_in.append(document)
        found.append(values[places])
    if not found:
        return pa.table({"identity": pa.array([], pa.string()), "gram": pa.array([], pa.uint64())})
    identity = documents["identity"].take(pa.array(np.concatenate(found_in))).cast(pa.string())
    return pa.table({"identity": identity, "gram": pa.array(np.concatenate(found), pa.uint64())})


def _filter(wanted: np.ndarray) -> np.ndarray:
    """One bit for each leading _FILTER_BITS of a wanted gram: nearly all others are ruled out by one look."""
    bits = np.zeros(1 << _FILTER_BITS, dtype=bool)
    bits[wanted >> np.uint64(64 - _FILTER_BITS)] = True
    return bits

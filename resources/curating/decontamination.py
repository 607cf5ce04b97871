"""Finds rows that contain evaluation items, by n-gram coverage: a row contains an item when its n-grams cover at least the
threshold's share of the item's words (Tulu 3: 8-grams and 50 %; GPT-3: 13-grams). A shorter item must occur whole; one of fewer
than four words must be a whole message. Only an item's own words count, not text that two items of a suite share, nor text that
two messages have without a stretch of the item's words. Finds are stored by day in the table `contamination`."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Bool

from resources.curating.alphabet import alphabet
from resources.curating.curation import Decontamination
from resources.curating.duplicates.near_duplicates import STRETCH
from resources.curating.shingles import RaggedLists, TextBuffer, in_groups, ngrams, text_buffer, word_hashes
from resources.lake import SCHEMAS, Tables, attach_slice, rows, run, stream

WHOLE_MESSAGE_BELOW = 4
"""Items with fewer words than this must be a whole message."""

NGRAMS = [8, 13]
"""Words of the n-grams: those of Tulu 3 and of GPT-3."""

_VERSION = 3
"""Version of the search: a new one searches all days again."""

_HITS = pa.schema([("row_id", pa.string()), ("gram", pa.uint64()), ("message", pa.string()), ("message_words", pa.int64())])


def find_contamination(connection: duckdb.DuckDBPyConnection, tables: Tables, workload: str, settings: Decontamination) -> None:
    """Creates the temp table `contaminated` (interaction_id, suite, item_id, part, share) for all rows of a workload."""
    attach_slice(connection, tables, "contamination", workload)
    searched = _digest(rows(connection, "curating/decontaminate/eval_parts"), settings)
    run(connection, "curating/decontaminate/day_contents")
    run(connection, "curating/decontaminate/days_to_search", searched=searched)
    days = [day for (day,) in run(connection, "curating/decontaminate/days_to_search_listed").fetchall()]
    if days:
        run(connection, "curating/decontaminate/searched_rows")
        find_items(connection, settings)
        finds = rows(connection, "curating/decontaminate/found_by_day", workload=workload, searched=searched)
        tables.replace("contamination", finds.cast(SCHEMAS["contamination"]), workload=workload, dt=days)
        attach_slice(connection, tables, "contamination", workload)
    run(connection, "curating/decontaminate/stored_finds", searched=searched)
    run(connection, "curating/decontaminate/contaminated", threshold=settings.threshold, long=max(NGRAMS))


def find_items(connection: duckdb.DuckDBPyConnection, settings: Decontamination) -> None:
    """Searches the rows of the view `searched_rows` (row_id, messages, completion) for `eval_items`. Creates the temp tables
    `finds` and `contaminated` (interaction_id, suite, item_id, part, share); interaction_id is the row's id."""
    items, own_words, grams = _grams_of_items(rows(connection, "curating/decontaminate/eval_parts"), settings)
    connection.register("items", items)
    connection.register("own_words", own_words)
    connection.register("grams", grams)
    wanted = _Wanted.of(grams)
    hits = [_hits(batch, wanted) for batch in stream(connection, "curating/decontaminate/searched_texts")]
    connection.register("hits", pa.concat_tables([_HITS.empty_table(), *hits]))
    run(connection, "curating/decontaminate/finds", stretch=STRETCH)
    run(connection, "curating/decontaminate/contaminated", threshold=settings.threshold, long=max(NGRAMS))


def _digest(parts: pa.Table, settings: Decontamination) -> str:
    digest = hashlib.sha256(f"{_VERSION} {NGRAMS} {settings.threshold}".encode())
    for part in sorted(parts.to_pylist(), key=lambda part: (part["suite"], part["item_id"], part["part"], part["text"])):
        digest.update(repr([part[name] for name in ("suite", "item_id", "part", "text")]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _grams_of_items(parts: pa.Table, settings: Decontamination) -> tuple[pa.Table, pa.Table, pa.Table]:
    words = word_hashes(parts["text"])
    lengths = words.lengths
    most = max(NGRAMS)
    is_answer = pc.equal(parts["part"], "answer").to_numpy(zero_copy_only=False)
    wanted = (lengths > 0) & (~is_answer | (lengths >= most))
    own = _own_words(parts, words)
    item_of = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(own)) - words.offsets[item_of]
    begins = np.flatnonzero(own & (~np.append(False, own)[:-1] | (place == 0)))
    before = np.concatenate([[0], np.cumsum(own)])
    own_count = before[words.offsets[1:]] - before[words.offsets[:-1]]
    few = own_count < most
    items = pa.table(
        {
            "item": np.arange(len(parts)),
            "suite": parts["suite"],
            "item_id": parts["item_id"],
            "part": parts["part"],
            "own": own_count,
            "needed": np.where(few, 1.0, settings.threshold),
        }
    )
    own_words = pa.table({"item": item_of[own], "word": place[own], "nth": (before[:-1] - before[words.offsets[item_of]])[own]})
    run_words = np.zeros(len(own), dtype=np.int64)
    run_words[begins] = np.diff(np.append(before[begins], before[-1]))
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("gram", "item", "size", "start", "whole")}
    for size in sorted({*range(1, most), *NGRAMS}):
        runs = ngrams(words, size)
        item = np.repeat(np.arange(len(lengths)), runs.lengths)
        start = np.arange(len(runs.values)) - np.repeat(runs.offsets[:-1], runs.lengths)
        at = words.offsets[item] + start
        mine = few[item] & (run_words[at] == size)
        if size in NGRAMS:
            mine |= (lengths[item] >= most) & (before[at + size] > before[at])
        mine &= wanted[item]
        for name, values in (
            ("gram", runs.values ^ np.uint64(size)),
            ("item", item),
            ("start", start),
            ("size", np.full(len(at), size)),
            ("whole", np.full(len(at), size < WHOLE_MESSAGE_BELOW)),
        ):
            columns[name].append(values[mine])
    return items, own_words, pa.table({name: np.concatenate(values) for name, values in columns.items()})


def _own_words(parts: pa.Table, words: RaggedLists) -> Bool[np.ndarray, " words"]:
    """Marks the words that are in no n-gram of another item of the suite; an item that others contain counts whole."""
    size = min(NGRAMS)
    suite, owner = (pc.rank(parts[name], tiebreaker="dense").to_numpy() for name in ("suite", "owner"))
    runs = ngrams(words, size)
    part = np.repeat(np.arange(len(parts)), runs.lengths)
    at = words.offsets[part] + np.arange(len(part)) - runs.offsets[part]
    keys = runs.values ^ (suite[part] * np.uint64(0x9E3779B97F4A7C15))
    left = np.ones(len(parts), dtype=bool)
    for _ in range(2):
        grams = pa.table({"key": keys, "owner": owner[part]}).filter(pa.array(left[part]))
        counts = grams.group_by("key").aggregate([("owner", "count_distinct")])
        common = at[np.isin(keys, counts.filter(pc.greater(counts["owner_count_distinct"], 1))["key"].to_numpy())]
        begin, end = (np.bincount(edge, minlength=len(words.values) + 1) for edge in (common, common + size))
        own = np.cumsum(begin - end)[:-1] == 0
        left &= np.bincount(np.repeat(np.arange(len(parts)), words.lengths), own, len(parts)) > 0
    return own | np.repeat(~left | (words.lengths < max(NGRAMS)), words.lengths)


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
    from resources.curating.word_kernels import find_grams

    def work(first: int, texts: TextBuffer) -> np.ndarray:
        room = 4096
        while True:
            hits = np.empty((room, 2), dtype=np.uint64)
            count = find_grams(
                texts.content,
                texts.edges,
                alphabet(),
                wanted.sizes,
                wanted.whole,
                wanted.seen,
                wanted.shift,
                wanted.table,
                hits,
            )
            if count <= room:
                hits[:count, 0] += np.uint64(first)
                return hits[:count]
            room = count

    hits_of_all = np.concatenate([np.zeros((0, 2), np.uint64), *in_groups(work, text_buffer(messages["text"]))])
    texts, place = np.unique(hits_of_all[:, 0].astype(np.int64), return_inverse=True)
    words = word_hashes(messages["text"].take(pa.array(texts)))
    names = [
        hashlib.blake2b(words.values[first:last].tobytes(), digest_size=8).hexdigest()
        for first, last in itertools.pairwise(words.offsets)
    ]
    return pa.table(
        {
            "row_id": messages["row_id"].take(pa.array(texts[place])),
            "gram": hits_of_all[:, 1],
            "message": pa.array(names, pa.string()).take(pa.array(place)),
            "message_words": words.lengths[place],
        }
    ).cast(_HITS)


EVAL_ITEMS = pa.schema([("suite", pa.string()), ("item_id", pa.string()), ("prompt", pa.string()), ("answer", pa.string())])


def read_eval_items(path: Path | None) -> pa.Table:
    """The items of a suite's items.parquet; an empty table for None. Other columns of the file are left out."""
    if path is None:
        return EVAL_ITEMS.empty_table()
    return pq.read_table(path).select(EVAL_ITEMS.names).cast(EVAL_ITEMS)

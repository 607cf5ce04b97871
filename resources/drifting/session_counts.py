"""What each session of a day counts in every test: by SQL (sql/drifting.sql) and resources.curating.shingles, a day at a time.
What is distinguished (shapes, languages, tools, tenths of lengths, known n-grams) comes from the reference's vocabulary days.
"""

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int64, UInt64

from resources.curating import FeedbackScale, JudgeSettings, attach_graded_feedback, ngrams, word_hashes
from resources.drifting.chosen_window import TEXT_TESTS, KnownVocabulary
from resources.drifting.permutation import Columns, Kind
from resources.drifting.settings import Reference
from resources.lake import Tables, attach_slice, rows, run, workbench
from resources.reading import CHATS_SOURCE

TENTHS = [str(place) for place in range(10)]
TESTS: dict[str, tuple[Kind, list[str]]] = {
    "prompt_shapes": ("shares", []), "language": ("shares", []), "tools": ("shares", []), "prompt_length": ("shares", TENTHS),
    "answer_length": ("shares", TENTHS), "novelty": ("rise", ["new", "known"]), "errors": ("rise", ["yes", "no"]),
    "broken_answers": ("rise", ["yes", "no"]), "refusals": ("rise", ["yes", "no"]), "feedback_given": ("shares", ["yes", "no"]),
    "bad_feedback": ("rise", ["bad", "good"]), "quality": ("fall", ["points", "missing points"]),
}  # fmt: skip
"""Each test's statistic and categories; an empty list: the commonest of the vocabulary days, and one for all others."""
OTHERS = ""
MOST_CATEGORIES = 30
"""Prompt shapes, languages and tools that are told apart; all others count as one."""
NGRAM = 3
"""Words in an n-gram, for the share that the reference window never had."""
CATEGORIES = pa.schema([("test", pa.string()), ("category", pa.string()), ("place", pa.int64())])


@dataclass(frozen=True)
class DriftInputs:
    """What tests read besides the traffic."""

    judge: JudgeSettings | None = None
    """Whose scores count; None: no scores."""
    scales: dict[str, FeedbackScale] = field(default_factory=dict)
    """Which feedback is good, by its name (resources.curating.feedback_scales)."""


class SessionCounts:
    """Counts of the sessions of single days."""

    def __init__(
        self, tables: Tables, workload: str, reference: Reference, seen: DriftInputs, known: KnownVocabulary | None = None
    ):
        """known: what vocabulary days told apart whose rows are gone; then the tests of texts are left out."""
        self._tables, self._workload, self._seen = tables, workload, seen
        self._vocabulary_days, self._given = reference.vocabulary, known
        self._tests = TESTS if known is None else {test: about for test, about in TESTS.items() if test not in TEXT_TESTS}

    @property
    def known(self) -> KnownVocabulary:
        categories, edges, _ = self._known
        return KnownVocabulary(categories, edges)

    @property
    def columns(self) -> list[Columns]:
        columns, first = [], 0
        for test, (kind, _) in self._tests.items():
            width = len(self._categories[test])
            columns.append(Columns(test, kind, first, width))
            first += width
        return columns

    @cached_property
    def _known(self) -> tuple[dict[str, list[str]], dict[str, list[int]], np.ndarray]:
        """Categories, edges of lengths, and n-grams of the vocabulary days."""
        if self._given is not None:
            return (
                {test: list(values) for test, values in self._given.categories.items()},
                {name: list(values) for name, values in self._given.edges.items()},
                np.zeros(0, np.uint64),
            )
        with self._traffic(self._vocabulary_days) as connection:
            chosen: dict[str, list[str]] = {}
            for row in rows(connection, "drifting/categories", most=MOST_CATEGORIES).to_pylist():
                chosen.setdefault(row["test"], []).append(row["category"])
            edges = rows(connection, "drifting/edges").to_pylist()[0]
            known = vocabulary(rows(connection, "drifting/known_texts")["new_text"], NGRAM)
        categories = {test: [*fixed] or [*chosen.get(test, []), OTHERS] for test, (_, fixed) in self._tests.items()}
        return categories, {name: [int(edge) for edge in values or []] for name, values in edges.items()}, known

    @property
    def _categories(self) -> dict[str, list[str]]:
        return self._known[0]

    @contextmanager
    def _traffic(self, days: Sequence[date]):
        judge = self._seen.judge
        with workbench() as connection:
            for name in ("cleaned_interactions", "feedback", "judgements"):
                attach_slice(connection, self._tables, name, self._workload, days)
            for macro in ("beginning", "refused_in_words"):
                run(connection, f"curating/macros/{macro}")
            attach_graded_feedback(connection, self._seen.scales)
            run(
                connection,
                "drifting/traffic",
                judge=judge.model if judge else None,
                prompt_sha256=judge.prompt_sha256 if judge else None,
                chats=CHATS_SOURCE,
            )
            yield connection

    def of_day(self, day: date) -> Float[np.ndarray, "sessions columns"]:
        _, edges, known = self._known
        places = [(test, category) for test in self._tests for category in self._categories[test]]
        table = pa.Table.from_pylist(
            [{"test": test, "category": category, "place": place} for place, (test, category) in enumerate(places)],
            schema=CATEGORIES,
        )
        with self._traffic([day]) as connection:
            run(connection, "drifting/sessions")
            connection.register("categories", table)
            counted = rows(
                connection, "drifting/session_counts", prompt_edges=edges["prompt_length"], answer_edges=edges["answer_length"]
            )
            counts = np.zeros((_sessions(connection), len(places)))
            np.add.at(counts, (counted["number"].to_numpy(), counted["place"].to_numpy()), counted["amount"].to_numpy())
            if "novelty" in self._tests:
                texts = rows(connection, "drifting/new_texts")
                numbers = texts["number"].to_numpy()
                new_and_known = novelty(texts["new_text"], known, NGRAM)
                for name, amounts in zip(("new", "known"), new_and_known, strict=True):
                    counts[:, places.index(("novelty", name))] = np.bincount(numbers, amounts, len(counts))
        return counts


def _sessions(connection: duckdb.DuckDBPyConnection) -> int:
    return connection.table("sessions").count("*").fetchall()[0][0]


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

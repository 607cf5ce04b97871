"""What each session of a day counts in every test: read from the lake, a day at a time.

    counts = SessionCounts(tables, "math-tutor", reference, settings, DriftInputs(judge=..., scales=...))
    counts.columns                          # the tests, and which columns are theirs
    counts.of_day(date(2026, 7, 1))         # float64 [sessions, columns]
    known = vocabulary(texts, size=3)                        # sorted hashes of word n-grams, each once
    new, old = novelty(texts, known, size=3)                 # n-grams of each text that are new, and that are known
    usual = usual_similarity(known, sessions)                # what 19 of 20 prompts of the vocabulary days reach
    far = is_far(vectors, known, usual)                      # prompts whose nearest known one is less similar than that

SQL counts (sql/drifting.sql); n-grams are counted by the kernels of resources.curating.shingles. What is distinguished (shapes,
languages, tools, tenths of lengths, known n-grams) comes from the reference's vocabulary days. A text with fewer words than an
n-gram has none.

vectors, known: of an embedding model, of length 1. Similarity is the cosine; nearest neighbours are exact, in blocks of bounded
memory. How many are far is counted by session and tested like every other test (permutation.py): the bound is made from the
vocabulary alone, so sessions of the reference's other days and of a window are exchangeable as long as nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Float32, Int64, UInt64

from resources.curating import FeedbackScale, JudgeSettings, attach_graded_feedback, ngrams, word_hashes
from resources.drifting.chosen_window import TEXT_TESTS, KnownVocabulary
from resources.drifting.days import Reference
from resources.drifting.permutation import Columns, Kind
from resources.drifting.prompt_vectors import PromptVectors
from resources.drifting.settings import DriftSettings
from resources.lake import Tables, attach_slice, rows, run, workbench
from resources.reading import CHATS_SOURCE

TENTHS = [str(place) for place in range(10)]
TESTS: dict[str, tuple[Kind, list[str]]] = {
    "prompt_shapes": ("shares", []),
    "language": ("shares", []),
    "tools": ("shares", []),
    "prompt_length": ("shares", TENTHS),
    "answer_length": ("shares", TENTHS),
    "novelty": ("rise", ["new", "known"]),
    "errors": ("rise", ["yes", "no"]),
    "broken_answers": ("rise", ["yes", "no"]),
    "refusals": ("rise", ["yes", "no"]),
    "feedback_given": ("shares", ["yes", "no"]),
    "bad_feedback": ("rise", ["bad", "good"]),
    "quality": ("fall", ["points", "missing points"]),
}
"""Each test's statistic and categories; an empty list: the commonest of the vocabulary days, and one for all others."""
EMBEDDED: dict[str, tuple[Kind, list[str]]] = {"novelty_embeddings": ("rise", ["far", "near"])}
"""Only with an embedding model."""
OTHERS = ""
MOST_CATEGORIES = 30
"""Prompt shapes, languages and tools that are told apart; all others count as one."""
NGRAM = 3
"""Words in an n-gram, for the share that the reference window never had."""
PROMPTS_A_SESSION = 4
"""Most prompts of a session on a day that are embedded."""
BEGINNING = 500
"""Characters of a prompt that are embedded: a model reads few, and the beginning says what is asked for."""
MOST_KNOWN = 8_192
"""Vectors of the vocabulary that prompts are compared with; of more, as many are drawn."""
DAYS_AT_ONCE = 16
"""Days whose prompts are embedded by one job of the worker."""
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
        self,
        tables: Tables,
        workload: str,
        reference: Reference,
        settings: DriftSettings,
        seen: DriftInputs,
        vectors: PromptVectors | None = None,
        known: KnownVocabulary | None = None,
    ):
        """known: what vocabulary days told apart whose rows are gone; then the tests of texts are left out."""
        self._tables, self._workload, self._settings, self._seen = tables, workload, settings, seen
        self._vocabulary_days, self._vectors, self._kept = reference.vocabulary, vectors, known
        self._tests = TESTS | EMBEDDED if vectors is not None else TESTS
        if known is not None:
            self._tests = {test: about for test, about in self._tests.items() if test not in TEXT_TESTS}

    @property
    def known(self) -> KnownVocabulary:
        """What the vocabulary days tell apart."""
        categories, edges, _ = self._known
        return KnownVocabulary(categories, edges)

    @property
    def columns(self) -> list[Columns]:
        """The tests, in the order of TESTS, then EMBEDDED."""
        found, first = [], 0
        for test, (kind, _) in self._tests.items():
            width = len(self._categories[test])
            found.append(Columns(test, kind, first, width))
            first += width
        return found

    def embed(self, days: Sequence[date]) -> None:
        """Embeds the prompts of days that were never embedded, many days at once: the worker reads its model for each job."""
        vectors = self._vectors
        if vectors is None:
            return
        new = [day for day in days if not vectors.has(day)]
        for first in range(0, len(new), DAYS_AT_ONCE):
            vectors.make({day: self._prompts_of(day) for day in new[first : first + DAYS_AT_ONCE]})

    @cached_property
    def _share(self) -> float:
        """Of the sessions whose prompts are embedded."""
        with self._traffic(self._vocabulary_days) as connection:
            usual = rows(connection, "drifting/sessions_a_day")["sessions"][0].as_py()
        return min(1.0, self._settings.embeddings.sessions_per_day / usual) if usual else 1.0

    @cached_property
    def _known_vectors(self) -> tuple[np.ndarray, float]:
        """Vectors of the vocabulary's prompts, and the similarity that all but a few of them reach."""
        assert self._vectors is not None
        found, names = [], []
        for day in self._vocabulary_days:
            prompts = self._prompts_of(day)
            vectors = self._vectors.of_day(day, prompts)
            is_one = vectors.any(axis=1)
            found += [vectors[is_one]] if is_one.any() else []
            names += [name for name, one in zip(prompts["session"].to_pylist(), is_one, strict=True) if one]
        known = np.concatenate(found) if found else np.zeros((0, 1), np.float32)
        _, sessions = np.unique(names, return_inverse=True)
        chosen = np.sort(np.random.default_rng(0).permutation(len(known))[:MOST_KNOWN])
        return known[chosen], usual_similarity(known[chosen], sessions[chosen])

    def _prompts_of(self, day: date) -> pa.Table:
        share = self._share
        with self._traffic([day]) as connection:
            run(connection, "drifting/sessions")
            return self._prompts(connection, share)

    def _prompts(self, connection: duckdb.DuckDBPyConnection, share: float) -> pa.Table:
        return rows(connection, "drifting/prompts_to_embed", share=share, characters=BEGINNING, most=PROMPTS_A_SESSION)

    def _far(self, day: date, prompts: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """The session of each compared prompt, and whether it is far from all that is known."""
        assert self._vectors is not None
        known, usual = self._known_vectors
        vectors = self._vectors.of_day(day, prompts)
        is_one = vectors.any(axis=1)
        if not len(known) or not is_one.any():
            return np.zeros(0, np.int64), np.zeros(0, bool)
        return prompts["number"].to_numpy()[is_one], is_far(vectors[is_one], known, usual)

    @cached_property
    def _known(self) -> tuple[dict[str, list[str]], dict[str, list[int]], np.ndarray]:
        """Categories, edges of lengths, and n-grams of the vocabulary days."""
        if self._kept is not None:
            return (
                {test: list(found) for test, found in self._kept.categories.items()},
                {name: list(found) for name, found in self._kept.edges.items()},
                np.zeros(0, np.uint64),
            )
        with self._traffic(self._vocabulary_days) as connection:
            chosen: dict[str, list[str]] = {}
            for row in rows(connection, "drifting/categories", most=MOST_CATEGORIES).to_pylist():
                chosen.setdefault(row["test"], []).append(row["category"])
            edges = rows(connection, "drifting/edges").to_pylist()[0]
            known = vocabulary(rows(connection, "drifting/known_texts")["new_text"], NGRAM)
        categories = {test: [*fixed] or [*chosen.get(test, []), OTHERS] for test, (_, fixed) in self._tests.items()}
        return categories, {name: [int(edge) for edge in found or []] for name, found in edges.items()}, known

    @property
    def _categories(self) -> dict[str, list[str]]:
        return self._known[0]

    @contextmanager
    def _traffic(self, days: Sequence[date]):
        """A DuckDB with the table `traffic` of these days."""
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
        """What each session of a day counts in every test."""
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
                found = novelty(texts["new_text"], known, NGRAM)
                for name, amounts in zip(("new", "known"), found, strict=True):
                    counts[:, places.index(("novelty", name))] = np.bincount(numbers, amounts, len(counts))
            prompts = self._prompts(connection, self._share) if self._vectors is not None else None
        if prompts is not None:
            numbers, far = self._far(day, prompts)
            for name, amounts in (("far", far), ("near", ~far)):
                counts[:, places.index(("novelty_embeddings", name))] = np.bincount(numbers, amounts, len(counts))
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


FAR = 0.05
"""Share of the vocabulary's prompts that lie further from those of other sessions than the bound."""
ROUNDING = 1e-3
"""Similarities that differ by less are alike: vectors are kept in half precision."""
BLOCK = 512
"""Rows that are compared at a time."""
SAMPLE = 2_048
"""Most prompts of the vocabulary that the bound is made from, at even steps."""

Vectors = Float32[np.ndarray, "rows hidden"]


def nearest(vectors: Vectors, known: Vectors) -> Float32[np.ndarray, " rows"]:
    """The highest similarity of each row to a known one. Raises ValueError without known ones."""
    if not len(known):
        raise ValueError("there is nothing known to be near to")
    found = [(vectors[first : first + BLOCK] @ known.T).max(axis=1) for first in range(0, len(vectors), BLOCK)]
    return np.concatenate(found) if found else np.zeros(0, np.float32)


def usual_similarity(known: Vectors, sessions: Int64[np.ndarray, " rows"]) -> float:
    """The similarity to the nearest prompt of another session that all but FAR of the known ones reach. -1 where all are of one
    session: then nothing is far."""
    chosen = np.unique(np.linspace(0, len(known) - 1, min(len(known), SAMPLE)).astype(np.int64)) if len(known) else []
    found = []
    for first in range(0, len(chosen), BLOCK):
        rows = chosen[first : first + BLOCK]
        similar = known[rows] @ known.T
        similar[sessions[rows][:, None] == sessions[None, :]] = -1.0
        found.append(similar.max(axis=1))
    return float(np.quantile(np.concatenate(found), FAR)) if found else -1.0


def is_far(vectors: Vectors, known: Vectors, usual: float) -> Bool[np.ndarray, " rows"]:
    """Which rows are less similar to every known one than the bound."""
    return nearest(vectors, known) < usual - ROUNDING

"""Keeps the reference window that a release was first compared with, so that it stays the same while days leave the lake.

    chosen = ChosenWindow(tables.lake, "math-tutor", release="3f2a", length=28, counted_with=digest)
    chosen.window                             # Window without counts, or None before one was chosen
    chosen.window.has_left(rows_by_day)       # its rows were removed: compare with the counts of chosen.with_counts()
    chosen.keep(Window(reference, known, digest, files, counts))

Lies in <lake>/reference_windows/<workload>/<release>-<length>.npz, of a lake in a bucket for all machines: the first one that
writes it chooses. It holds days, hashed names of categories (prompt shapes, languages, tools), lengths, and what each session
counted: no text, no id, no n-gram. A file that cannot be read counts as none.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date

import numpy as np

from model_ops.atomic_files import replaced
from resources.drifting.days import Reference
from resources.drifting.kept_counts import Counts
from resources.drifting.permutation import Columns
from resources.lake import Lake
from stores.mirror.bucket import Changed

FOLDER = "reference_windows"
NO_RELEASE = "no_release"
TEXT_TESTS = frozenset({"novelty", "novelty_embeddings"})
"""Tests that need texts of the vocabulary days. They end when these days leave the lake."""
A_FEW = 0.02
"""Share of a window's rows whose loss does not matter."""

@dataclass(frozen=True)
class Known:
    """What the vocabulary days tell apart. categories: hashed names by test. edges: of lengths in characters, by test."""

    categories: Mapping[str, Sequence[str]]
    edges: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Window:
    """counted_with: digest of the settings and code that counted. files: digest of the files that were counted. rows: of each
    of its days. counts: of the comparison's days, without the columns of TEXT_TESTS. instead_of: first and last day of a window
    that could not be compared with any more."""

    reference: Reference
    known: Known
    counted_with: str
    files: str
    rows: Mapping[date, int]
    counts: Mapping[date, Counts] = field(default_factory=dict, compare=False)
    instead_of: tuple[str, ...] = ()

    def has_left(self, rows: Mapping[date, int]) -> bool:
        """Whether days with more than A_FEW of its rows have less than half of theirs left: retention removed them. An erasure
        takes less of a day. rows: in the lake, by day."""
        left = sum(count for day, count in self.rows.items() if rows.get(day, 0) < count / 2)
        return left > A_FEW * sum(self.rows.values())


class ChosenWindow:
    """The window of one release and length in days. release: "" for none. counted_with: digest of the settings and code that
    count. window: what was chosen; None before that."""

    def __init__(self, lake: Lake, workload: str, release: str, length: int, counted_with: str):
        self._lake, self.counted_with = lake, counted_with
        self._path = lake.root / FOLDER / workload / f"{release or NO_RELEASE}-{length}.npz"
        lake.mirror.pull_file(self._path)
        self.window = self._read()

    def with_counts(self) -> Window | None:
        """The window with its counts; None where they cannot be read."""
        return self._read(with_counts=True)

    def _read(self, with_counts: bool = False) -> Window | None:
        with suppress(OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile), np.load(self._path) as kept:
            about = json.loads(str(kept["about"]))
            vocabulary, comparison = (tuple(map(date.fromisoformat, about[name])) for name in ("vocabulary", "comparison"))
            reference = Reference(date.fromisoformat(about["start"]), date.fromisoformat(about["end"]), vocabulary, comparison)
            return Window(reference, Known(about["categories"], about["edges"]), about["counted_with"], about["files"],
                          {date.fromisoformat(day): count for day, count in about["rows"].items()},
                          {day: kept[day.isoformat()] for day in comparison if with_counts}, tuple(about["instead_of"]))
        return None

    def keep(self, window: Window) -> None:
        """Writes the window with its counts. Of two machines, the window of the first one stays. A lake that cannot be written
        keeps none."""
        reference = window.reference
        about = {
            "start": reference.start.isoformat(), "end": reference.end.isoformat(), "counted_with": window.counted_with,
            "vocabulary": [day.isoformat() for day in reference.vocabulary], "files": window.files,
            "comparison": [day.isoformat() for day in reference.comparison],
            "categories": dict(window.known.categories), "edges": dict(window.known.edges),
            "rows": {day.isoformat(): count for day, count in window.rows.items()}, "instead_of": window.instead_of}
        try:
            with replaced(self._path) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, about=np.array(json.dumps(about)),
                                    **{day.isoformat(): found for day, found in window.counts.items()})
        except OSError:
            return
        try:
            self._lake.mirror.publish(self._path)
        except Changed:
            self._path.unlink(missing_ok=True)
            self._lake.mirror.pull_file(self._path)


def without_texts(counts: Counts, columns: Sequence[Columns]) -> Counts:
    """The counts without the columns of TEXT_TESTS."""
    return np.concatenate([each.of(counts) for each in columns if each.name not in TEXT_TESTS], axis=1)

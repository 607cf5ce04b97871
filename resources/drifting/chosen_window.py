"""Keeps the reference window that a release was first compared with, in
<lake>/reference_windows/<workload>/<release>-<length>.npz, so that it stays the same while days leave the lake; the first
machine that writes it chooses. It holds days, hashed names of categories, lengths, and what each session counted: no text, no
id, no n-gram. A broken file counts as none."""

import json
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from model_ops.files import replacement
from model_ops.jobs import counted
from resources.digests import partition_key
from resources.drifting.permutation import Columns
from resources.drifting.settings import Reference, reference_of
from resources.lake import LakeLayout, Tables
from stores.mirror.bucket import Conflict

TABLES = ("cleaned_interactions", "feedback", "judgements")
"""What the counts of a day are made from."""
DAYS_IN_MEMORY = 64

Counts = Float[np.ndarray, "sessions columns"]


class DayFiles:
    """The files that the counts of each day are made from, as the commit logs name them."""

    def __init__(self, tables: Tables, workload: str):
        self._files = [tables.files_by_day(name, workload) for name in TABLES]

    def of(self, *days: date) -> list[str]:
        return [file for day in days for files in self._files for file in files.get(day, ())]


class CountCache:
    """The counts of one workload's days, by files of the vocabulary and of each day."""

    def __init__(self, tables: Tables, workload: str, vocabulary: Sequence[date], digest: str, count: Callable[[date], Counts]):
        """digest: of what else decides the counts, such as settings and code. count: counts a day that is not kept."""
        self._folder, self._count = tables.lake.root / ".remembered" / "drift" / workload, count
        self._files = DayFiles(tables, workload)
        self._counted_by = partition_key(self._files.of(*vocabulary), digest)
        self.of_day = lru_cache(DAYS_IN_MEMORY)(self._of_day)

    def has(self, day: date) -> bool:
        """Whether a day need not be counted."""
        return self._read(day) is not None

    def keep_days(self, days: Collection[date]) -> None:
        names = {self._path(day).name for day in days}
        for path in self._folder.glob("*.npz"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def _of_day(self, day: date) -> Counts:
        counts = self._read(day)
        if counts is None:
            counts = self._count(day)
            with suppress(OSError), replacement(self._path(day)) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, key=np.array(self._key(day)), counts=counts)
        return counts

    def _read(self, day: date) -> Counts | None:
        with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), np.load(self._path(day)) as file:
            if str(file["key"]) == self._key(day):
                return file["counts"]
        return None

    def _key(self, day: date) -> str:
        return partition_key(self._files.of(day), self._counted_by)

    def _path(self, day: date) -> Path:
        return self._folder / f"{day}.npz"


FOLDER = "reference_windows"
NO_RELEASE = "no_release"
TEXT_TESTS = ("novelty",)
"""Tests that need texts of the vocabulary days. They end when these days leave the lake."""
A_FEW = 0.02
"""Share of a window's rows whose loss does not matter."""


@dataclass(frozen=True)
class KnownVocabulary:
    """What the vocabulary days tell apart, by test."""

    categories: Mapping[str, Sequence[str]]
    """Hashed names."""
    edges: Mapping[str, Sequence[int]]
    """Edges of lengths, in characters."""


@dataclass(frozen=True)
class ReferenceWindow:
    """A reference window as it is kept."""

    reference: Reference
    known: KnownVocabulary
    counted_with: str
    """Digest of the settings and code that counted."""
    files: str
    """Digest of the files that were counted."""
    rows: Mapping[date, int]
    """Number of rows of each of its days."""
    counts: Mapping[date, Counts] = field(default_factory=dict, compare=False)
    """Of the comparison's days, without the columns of TEXT_TESTS."""
    instead_of: tuple[str, ...] = ()
    """First and last day of a window that could not be compared with any more."""

    def has_left(self, rows: Mapping[date, int]) -> bool:
        """Whether days with more than A_FEW of its rows have less than half of theirs left: retention removed them. An erasure
        takes less of a day. rows: in the lake, by day."""
        left = sum(count for day, count in self.rows.items() if rows.get(day, 0) < count / 2)
        return left > A_FEW * sum(self.rows.values())


@dataclass(frozen=True)
class ReferenceChoice:
    """The reference window of one comparison."""

    reference: Reference | None
    """None while no window is full."""
    text: str
    """Which days it is."""
    lost: ReferenceWindow | None
    """The window with its counts, where rows of it left the lake: only the counts can be compared with."""
    instead_of: tuple[str, ...]
    notes: list[str]


class ChosenWindow:
    """The window of one release and length in days."""

    def __init__(self, lake: LakeLayout, workload: str, release: str, length: int, counted_with: str):
        """release: "" for none. counted_with: digest of the settings and code that count."""
        self._lake, self._release, self._length, self.counted_with = lake, release, length, counted_with
        self._path = lake.root / FOLDER / workload / f"{release or NO_RELEASE}-{length}.npz"
        lake.mirror.pull_file(self._path)
        self.window = self._read()
        """The window that was chosen; None before that."""

    def choose(self, rows: Mapping[date, int], today: date, released_on: date | None) -> ReferenceChoice:
        """The chosen window as long as it can be compared with, else another one. rows: in the lake, by day. released_on: the
        day on which the release was made."""
        before, notes = self.window, []
        is_lost = before is not None and before.has_left(rows)
        is_usable = before is not None and is_lost and before.counted_with == self.counted_with
        if (lost := self.with_counts() if is_usable else None) is not None:
            reference: Reference | None = lost.reference
            notes.append(
                "rows of the reference window are no longer in the lake: days are compared with what its sessions "
                "counted, in all tests but those of novelty, which need its texts"
            )
        else:
            start = before.reference.start if before is not None and not is_lost else None
            reference = reference_of(rows, self._length, today, released_on, start)
        if before is not None and is_lost and lost is None:
            instead_of: tuple[str, ...] = (before.reference.start.isoformat(), before.reference.end.isoformat())
        else:
            instead_of = before.instead_of if before is not None else ()
        if instead_of:
            notes.append(
                f"the reference window was {instead_of[0]} to {instead_of[1]} before: rows of it left the lake, and what was "
                "kept of it was counted with other settings or code. A change between the two windows is not found; to avoid "
                f"this, keep rows for the age of the release and {counted(self._length, 'day')} more"
            )
        return ReferenceChoice(
            reference, self._text(reference, released_on) if reference is not None else "", lost, instead_of, notes
        )

    def _text(self, reference: Reference, released_on: date | None) -> str:
        if released_on is not None and reference.start == released_on - timedelta(self._length):
            return f"the last full window before release {self._release}"
        if self._release:
            return f"a full window of the logs, since the lake had none before release {self._release}"
        return "the first full window of the logs, since no release is served"

    def with_counts(self) -> ReferenceWindow | None:
        return self._read(with_counts=True)

    def _read(self, with_counts: bool = False) -> ReferenceWindow | None:
        with suppress(OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile), np.load(self._path) as file:
            about = json.loads(str(file["about"]))
            vocabulary, comparison = (tuple(map(date.fromisoformat, about[name])) for name in ("vocabulary", "comparison"))
            reference = Reference(date.fromisoformat(about["start"]), date.fromisoformat(about["end"]), vocabulary, comparison)
            return ReferenceWindow(
                reference,
                KnownVocabulary(about["categories"], about["edges"]),
                about["counted_with"],
                about["files"],
                {date.fromisoformat(day): count for day, count in about["rows"].items()},
                {day: file[day.isoformat()] for day in comparison if with_counts},
                tuple(about["instead_of"]),
            )
        return None

    def keep(self, window: ReferenceWindow) -> None:
        """Writes the window with its counts. Of two machines, the window of the first one stays. A lake that cannot be written
        keeps none."""
        reference = window.reference
        about = {
            "start": reference.start.isoformat(),
            "end": reference.end.isoformat(),
            "counted_with": window.counted_with,
            "vocabulary": [day.isoformat() for day in reference.vocabulary],
            "files": window.files,
            "comparison": [day.isoformat() for day in reference.comparison],
            "categories": dict(window.known.categories),
            "edges": dict(window.known.edges),
            "rows": {day.isoformat(): count for day, count in window.rows.items()},
            "instead_of": window.instead_of,
        }
        try:
            with replacement(self._path) as temporary, temporary.open("wb") as file:
                arrays: dict[str, Any] = {day.isoformat(): counts for day, counts in window.counts.items()}
                np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)
        except OSError:
            return
        try:
            self._lake.mirror.publish(self._path)
        except Conflict:
            self._path.unlink(missing_ok=True)
            self._lake.mirror.pull_file(self._path)


def without_texts(counts: Counts, columns: Sequence[Columns]) -> Counts:
    """The counts without the columns of TEXT_TESTS."""
    return np.concatenate([each.of(counts) for each in columns if each.name not in TEXT_TESTS], axis=1)

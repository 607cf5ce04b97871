"""Keeps the counts of days that were read, so that a report reads the days of its reference window once, not every day.

Lies in <lake>/.remembered/drift/<workload>/<day>.npz: numbers alone, no text and no id. A count stays as long as the files of
its day, those of the vocabulary days, settings and code do; Delta never writes a file's name again. Of a lake that cannot be
written nothing is kept.
"""

import zipfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import date
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Float

from model_ops.files import replaced
from resources.digests import partition_key
from resources.lake import Tables

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
            with suppress(OSError), replaced(self._path(day)) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, key=np.array(self._key(day)), counts=counts)
        return counts

    def _read(self, day: date) -> Counts | None:
        """None for a file of other rows, or one that cannot be read."""
        with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), np.load(self._path(day)) as file:
            if str(file["key"]) == self._key(day):
                return file["counts"]
        return None

    def _key(self, day: date) -> str:
        return partition_key(self._files.of(day), self._counted_by)

    def _path(self, day: date) -> Path:
        return self._folder / f"{day}.npz"

"""Remembers which days are cleaned and up to date, by the names of the files that were compared."""

from collections.abc import Collection
from datetime import date

from resources.digests import AnswerCache, partition_key
from resources.lake import Tables

FRESH = "fresh"


class FreshDays:
    """The up-to-date days of one workload, for one digest of settings and code."""

    def __init__(self, tables: Tables, workload: str, cleaned_with: str | None):
        files = {name: tables.files_by_day(name, workload) for name in ("interactions", "cleaned_interactions", "feedback")}
        days = {*files["interactions"], *files["cleaned_interactions"]}
        self._keys = {
            day: partition_key(
                [*files["interactions"].get(day, ()), *files["cleaned_interactions"].get(day, ())],
                cleaned_with or "",
                day.isoformat(),
            )
            for day in days
        }
        everything = [file for of_days in files.values() for part in of_days.values() for file in part]
        self._heard_key = partition_key(everything, "heard")
        self._memory = AnswerCache(tables.lake, f"cleaned/{workload}", code="clean")

    @property
    def unknown(self) -> list[date]:
        """Days whose rows have to be compared."""
        return sorted(day for day, key in self._keys.items() if self._memory.get(key) != FRESH)

    @property
    def is_heard(self) -> bool:
        return self._memory.get(self._heard_key) == FRESH

    def keep(self, stale: Collection[date], opinions_hold: bool) -> None:
        """Remembers the result of a comparison. stale: the days that are not up to date."""
        known = {key: FRESH for day, key in self._keys.items() if day not in stale}
        if opinions_hold or self.is_heard:
            known[self._heard_key] = FRESH
        self._memory.keep(known)

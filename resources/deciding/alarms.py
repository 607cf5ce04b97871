"""Alarms of the table `drift` as episodes: an alarm goes on until its value falls below half of its bound.

The chart of acceptance begins again at 0 after each alarm, and rises to the next one while the fall goes on. So its episode
ends only when the value was below half of the bound on CLEAR_DAYS days with drafts in a row.

    episodes(rows)           # Episode(test, window_days, start, end, value, bound), the ones that go on

So a value that hovers about its bound is one cause, not one a day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

CLEARS_AT = 0.5
"""Share of the bound below which an alarm ends."""
CLEAR_DAYS = {"acceptance": 7}
"""Days in a row, of those that a test has values for, after which its alarm ends; of other tests 1. A small fall takes days
from one alarm to the next, and its sum is below half of the bound on half of them."""
LATE_DAYS = 14
"""Days after the newest compared one within which an episode still counts: a test that is no longer compared goes silent."""


@dataclass(frozen=True)
class Episode:
    test: str
    window_days: int
    start: date
    """The day of its first alarm."""
    end: date
    value: float
    bound: float
    """`value`, `bound`: of the newest day."""

    def __str__(self) -> str:
        return f"{self.test} over {self.window_days} d since {self.start} ({self.value:.3g}, bound {self.bound:.3g})"


def episodes(rows: Iterable[Mapping[str, Any]]) -> list[Episode]:
    """The episodes that go on at the end of their series. rows: of the table `drift`, of one release."""
    series: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["value"] is not None and row["bound"] is not None:
            series.setdefault((row["test"], row["window_days"]), []).append(row)
    newest = max((row["dt"] for found in series.values() for row in found), default=None)
    going: list[Episode] = []
    for (test, window), found in sorted(series.items()):
        start: date | None = None
        last, clear = None, 0
        for last in sorted(found, key=lambda row: row["dt"]):
            is_clear = not last["alarm"] and last["value"] < CLEARS_AT * last["bound"]
            clear = clear + 1 if is_clear else 0
            if last["alarm"] and start is None:
                start = last["dt"]
            elif clear >= CLEAR_DAYS.get(test, 1):
                start = None
        if start is not None and last is not None and newest is not None and (newest - last["dt"]).days <= LATE_DAYS:
            going.append(Episode(test, window, start, last["dt"], float(last["value"]), float(last["bound"])))
    return going

"""Which days are the reference window, which are compared with it, and which days each is compared with.

The reference is cut in two because what is known must not be read from the days that are compared: a rare category that is
chosen because the reference has it is rarer anywhere else, and an n-gram of the reference is never new to it. Given the first
part, sessions of the second and of later days are exchangeable as long as nothing changes.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

VOCABULARY_SHARE = 4
"""The first of so many parts of the reference is its vocabulary."""
WEEKS_FOR_WEEKDAYS = 2
"""Weeks of the comparison, and days of it for each day of the week, from which on days are compared with the same days of the
week only."""


@dataclass(frozen=True)
class Reference:
    """The reference window: `start` to `end`, both included. The lists hold its days with traffic, in order."""

    start: date
    end: date
    vocabulary: tuple[date, ...]
    comparison: tuple[date, ...]


Stratum = tuple[list[date], list[date]]
"""Days of the window, and the days of the reference that they are compared with."""


def reference_of(
    days: Collection[date], length: int, today: date, before: date | None = None, chosen: date | None = None
) -> Reference | None:
    """The reference window of `length` calendar days; None while there is none.

    days: with traffic. before: the day on which the release was made: its window is the last full one before it. Without it,
    or with too few days before it, the window is the one that begins with `chosen`, the first day of a window that was chosen
    before, else the first full one of the logs. A window without days in either part is none.
    """
    past = sorted(day for day in days if day < today)
    if not past:
        return None
    has_days_before = before is not None and before - timedelta(length) >= past[0]
    start = before - timedelta(length) if before is not None and has_days_before else chosen or past[0]
    end = start + timedelta(length - 1)
    split = start + timedelta(-(-length // VOCABULARY_SHARE))
    vocabulary = tuple(day for day in past if start <= day < split)
    comparison = tuple(day for day in past if split <= day <= end)
    return Reference(start, end, vocabulary, comparison) if end < today and vocabulary and comparison else None


def window_of(last: date, length: int, days: Collection[date], after: date) -> list[date]:
    """Days with traffic of the window that ends with `last`; none of them is before or on `after`, the reference's end."""
    return [day for back in reversed(range(length)) if (day := last - timedelta(back)) in days and day > after]


def strata_of(window: Sequence[date], comparison: Sequence[date]) -> list[Stratum]:
    """Window and comparison by day of the week; all days together where the comparison is too short for that, or a day of the
    week has too few days to compare with."""
    if not window or not comparison:
        return []
    by_weekday = [
        ([day for day in window if day.weekday() == weekday], [day for day in comparison if day.weekday() == weekday])
        for weekday in range(7)
    ]
    strata = [(inside, outside) for inside, outside in by_weekday if inside]
    span = (max(comparison) - min(comparison)).days + 1
    if span < 7 * WEEKS_FOR_WEEKDAYS or any(len(outside) < WEEKS_FOR_WEEKDAYS for _, outside in strata):
        return [(list(window), list(comparison))]
    return strata

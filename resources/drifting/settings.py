"""The recipe's `drift` settings: what traffic is compared with, and how often a false alarm may come."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated

from pydantic import Field, field_validator

from model_ops.jobs import Settings


class DriftSettings(Settings):
    """Whether traffic is compared with the release's reference window, and at which rate of false alarms."""

    enabled: bool = Field(True, description="false: traffic is not compared with a reference window")
    reference_days: int = Field(
        28,
        ge=4,
        le=366,
        description="Days of the reference window. The first quarter says which n-grams and categories are "
        "known, the others are compared with. From 19 days on, days are compared with the same days of the week only",
    )
    windows: list[Annotated[int, Field(ge=1, le=31)]] = Field(
        default_factory=lambda: [1, 7],
        min_length=1,
        max_length=4,
        description="Lengths in days of the windows that are "
        "compared: a short one finds a large change early, a long one a small change at all",
    )
    false_alarms_per_1000_days: float = Field(
        1.0,
        gt=0,
        le=100,
        description="Most false alarms that are expected in 1,000 days without a change, over all tests and windows together",
    )
    least_sessions: int = Field(
        20, ge=2, le=1_000_000, description="Sessions that a window needs to be compared; one with fewer is named instead"
    )
    acceptance_drop: float = Field(
        0.05, gt=0, lt=1, description="Fall of the served acceptance length that is worth finding, as a share of it"
    )

    @field_validator("windows")
    @classmethod
    def _ascending(cls, value: list[int]) -> list[int]:
        return sorted(set(value))


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
    """The reference window of `length` calendar days; None while there is none, or no traffic in either part. days: with
    traffic. before: the day on which the release was made: its window is the last full one before it. Without enough days, it
    begins with `chosen`, the first day of a window that was chosen before, else it is the first full one of the logs."""
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

"""Whether the recipe's cron schedule was due lately, and how far apart its times are.

    due("0 3 * * 1", "UTC", now)        # "2026-06-01 03:00", or ""
    last_time("0 3 * * 1", "UTC", now)          # the same, however long ago
    next_time("0 3 * * 1", "UTC", now)          # a datetime
    days_between("0 3 * * 1", "UTC", now)       # 7.0
"""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from croniter import croniter

CAUGHT_UP = timedelta(days=1)
"""How long after its time a schedule still counts: a daemon that was away for a week does not make up for it."""
TIMES = 8
"""Times of a schedule whose distance is averaged: the weekdays of a week, and its weekend."""


def due(cron: str, timezone: str, now: datetime) -> str:
    """The newest time of the schedule, in its time zone, if it is at most a day ago; "" otherwise."""
    at = _last(cron, timezone, now)
    return "" if now - at > CAUGHT_UP else _text(at)


def last_time(cron: str, timezone: str, now: datetime) -> str:
    """The newest time of the schedule, in its time zone."""
    return _text(_last(cron, timezone, now))


def next_time(cron: str, timezone: str, now: datetime) -> datetime:
    """The next time of the schedule."""
    return croniter(cron, now.astimezone(ZoneInfo(timezone))).get_next(datetime)


def _last(cron: str, timezone: str, now: datetime) -> datetime:
    return croniter(cron, now.astimezone(ZoneInfo(timezone))).get_prev(datetime)


def _text(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def days_between(cron: str, timezone: str, now: datetime) -> float:
    """Mean days from one of the next times of the schedule to the one after it."""
    times = croniter(cron, now.astimezone(ZoneInfo(timezone)))
    first = times.get_next(float)
    for _ in range(TIMES - 1):
        last = times.get_next(float)
    return (last - first) / (TIMES - 1) / 86_400

"""Whether the recipe's cron schedule was due lately.

    due("0 3 * * 1", "UTC", now)        # "2026-06-01 03:00", or ""
"""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from croniter import croniter

CAUGHT_UP = timedelta(days=1)
"""How long after its time a schedule still counts: a daemon that was away for a week does not make up for it."""


def due(cron: str, timezone: str, now: datetime) -> str:
    """The newest time of the schedule, in its time zone, if it is at most a day ago; "" otherwise."""
    at = croniter(cron, now.astimezone(ZoneInfo(timezone))).get_prev(datetime)
    return "" if now - at > CAUGHT_UP else f"{at:%Y-%m-%d %H:%M}"

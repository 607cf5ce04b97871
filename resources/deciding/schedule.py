"""Whether the recipe's cron schedule was due and nothing was made since.

    due("0 3 * * 1", "UTC", now, last_made)        # "2026-06-01 03:00", or ""
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from croniter import croniter

CAUGHT_UP = timedelta(days=1)
"""How long after its time a schedule still counts: a daemon that was away for a week does not make up for it."""


def due(cron: str, timezone: str, now: datetime, last_made: datetime | None) -> str:
    """The newest time of the schedule, in its time zone, if it is at most a day ago and after `last_made`; "" otherwise."""
    zone = ZoneInfo(timezone)
    at = croniter(cron, now.astimezone(zone)).get_prev(datetime)
    if now - at > CAUGHT_UP or (last_made is not None and at.astimezone(UTC) <= last_made):
        return ""
    return f"{at:%Y-%m-%d %H:%M}"

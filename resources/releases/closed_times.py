"""Times at which nothing is done by itself, as cron schedules of minutes: of approvals, and the quiet hours of retraining."""

from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from croniter import croniter

FIELDS = 5


def checked(schedules: list[str]) -> list[str]:
    """The schedules. Raises ValueError for one that is no cron schedule of five fields."""
    for schedule in schedules:
        if len(schedule.split()) != FIELDS or not croniter.is_valid(schedule):
            raise ValueError(
                f"{schedule!r} is no cron schedule of five fields (minute, hour, day, month, day of the week); "
                '"* 18-23 * * *" is every day from 18:00 to midnight'
            )
    return schedules


def checked_zone(name: str) -> str:
    """The time zone's name. Raises ValueError if it is unknown."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"{name!r} is no time zone; give a name such as Europe/Amsterdam or UTC") from error
    return name


def closed_by(schedules: Sequence[str], timezone: str, now: datetime) -> str | None:
    """The first schedule that matches the minute of `now`, in the time zone."""
    local = now.astimezone(ZoneInfo(timezone)).replace(tzinfo=None)
    return next((schedule for schedule in schedules if croniter.match(schedule, local)), None)

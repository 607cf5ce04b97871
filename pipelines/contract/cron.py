"""Checks cron schedules; the error says what is wrong."""

from __future__ import annotations

import re

EXAMPLE = '"0 3 * * 1" is every Monday at 3:00'
FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of the month", 1, 31), ("month", 1, 12), ("day of the week", 0, 7))


def checked_cron(schedule: str) -> str:
    """Returns the schedule. Raises ValueError for one that is malformed or never matches."""
    fields = schedule.split()
    if len(fields) != len(FIELDS) or not re.fullmatch(r"[\w*/,?#-]+", "".join(fields), re.ASCII):
        raise ValueError(f"a cron schedule has five fields (minute, hour, day, month, day of the week); {EXAMPLE}")
    for text, (name, least, most) in zip(fields, FIELDS, strict=True):
        for number in re.findall(r"(?<![/\w#])\d+", text):
            if not least <= int(number) <= most:
                raise ValueError(f"the {name} of a cron schedule is {least} to {most}, not {int(number)}; {EXAMPLE}")
    if not _ever_comes(schedule):
        raise ValueError(f"no time matches this cron schedule; {EXAMPLE}")
    return schedule


def _ever_comes(schedule: str) -> bool:
    import dagster as dg  # takes half a second, so only for recipes that set a schedule

    try:
        dg.ScheduleDefinition(job_name="any", cron_schedule=schedule)
    except Exception:  # its parser raises errors of any type
        return False
    return True

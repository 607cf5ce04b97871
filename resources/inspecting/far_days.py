"""Says which days lie far from the others: a clock that was wrong, or a log that was found again.

    far_days({date(2000, 1, 1): 1, date(2026, 6, 1): 900})     # "1 record of 2000-01-01 lies more than a year from the others"
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from itertools import pairwise

from model_ops.wording import counted

FAR = 365
REMEDY = "if their clock was wrong, correct them, or leave them out with first_day or last_day; they cost nothing"
_TIME = re.compile(
    r'"(?:created|created_?at|ts|timestamp|time|date|start_?time|started_?at|end_?time)"\s*:\s*"?'
    r"(?:(?P<day>\d{4}-\d\d-\d\d)|(?P<epoch>\d{9,19})\b)", re.IGNORECASE)


def far_days(days: Mapping[date, int]) -> str:
    """One sentence on the days that are more than FAR days from those with the most records; "" without any."""
    order, groups = sorted(days), []
    for earlier, day in pairwise([None, *order]):
        if earlier is None or (day - earlier).days > FAR:
            groups.append([])
        groups[-1].append(day)
    most = max(groups, key=lambda group: (sum(days[day] for day in group), group[-1]), default=[])
    far = [day for group in groups if group is not most for day in group]
    count = sum(days[day] for day in far)
    listed = ", ".join(map(str, far[:3])) + (f" and {len(far) - 3:,} other days" if len(far) > 3 else "")
    lie = "lies" if count == 1 else "lie"
    return f"{counted(count, 'record')} of {listed} {lie} more than a year from the others" if far else ""


def day_of_record(text: str) -> Iterator[date]:
    """The first day that a record's JSON names under a key of times. Digits: seconds, or 10^3, 10^6 or 10^9 to a second."""
    if found := _TIME.search(text):
        try:
            epoch = found["epoch"]
            yield date.fromisoformat(found["day"]) if found["day"] else datetime.fromtimestamp(
                int(epoch) / 1000 ** ((len(epoch) - 8) // 3), UTC).date()
        except (ValueError, OverflowError, OSError):
            return

"""Reads the time of a log record in the forms that loggers write and DuckDB does not read.

    moment_of("01/Jun/2026:12:00:00 +0200")     # "2026-06-01T12:00:00+02:00"
    moment_of('{"$date": 1780300800000}')       # "1780300800000": an epoch is left to the macro plain_moment
    moment_of("half past ten")                  # None: not known

Python's logging and log4j (a comma before the milliseconds), Apache's logs, RFC 2822 and 850, `date`, asctime, JavaScript's,
Java's, Go's, Oracle's, Kibana's and .NET's dates, ISO 8601 without separators or by weeks, MongoDB's and Protobuf's objects,
AM and PM. Two numbers with slashes are read where only one of them can be the month; with dots, the day is first. A time
without an offset is UTC. DuckDB calls it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, datetime, timedelta, timezone
from typing import Any

from model_ops.chat_apis import json_text

_CLOCK = (
    r"(?P<hour>\d{1,2})(?P<colon>[:.])(?P<minute>\d\d)(?:(?P=colon)(?P<second>\d\d)(?:[.,](?P<part>\d+))?)?"
    r"(?:\s*(?P<half>[ap])\.?m\.?)?"
)
_ZONE = (
    r"(?:\s*(?P<zone>z|[a-z]{3,4}(?![a-z])|ut))?(?:\s*(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d)?"
    r"(?:\s+[a-z]{3,4})?)?(?:\s+m=[+-][\d.]+)?"
)  # Go names the zone again, and its own clock
_AFTER = r"(?:\s*[\[(].*[\])])?"  # [Europe/Berlin], (Coordinated Universal Time)
_WEEKDAY, _NAME = r"(?:[a-z]{3,9}\.?,?\s+)?", r"(?P<name>[a-z]{3,9})\.?"
_FORMS = tuple(
    re.compile(f"{form}{_AFTER}", re.I)
    for form in (
        rf"(?P<year>\d{{4}})[-/.](?P<month>\d\d?)[-/.](?P<day>\d\d?)(?:[t\s,:]+{_CLOCK}{_ZONE})?",
        rf"(?P<year>\d{{4}})-?(?P<month>\d\d)-?(?P<day>\d\d)(?:[t\s_-]?(?P<hour>\d\d)(?P<minute>\d\d)(?P<second>\d\d)"
        rf"(?:[.,]?(?P<part>\d+))?{_ZONE})?",
        rf"(?P<year>\d{{4}})-?w(?P<week>\d\d)(?:-?(?P<day>[1-7]))?(?:[t\s]{_CLOCK}{_ZONE})?",
        rf"{_WEEKDAY}(?P<day>\d\d?)[\s/-]{_NAME}[\s/,-]+(?P<year>\d{{4}}|\d\d)[:\s,t]+{_CLOCK}{_ZONE}",
        rf"{_WEEKDAY}{_NAME}\s+(?P<day>\d\d?),?\s+(?P<year>\d{{4}}),?\s+(?:(?:at|@)\s+)?{_CLOCK}{_ZONE}",
        rf"{_WEEKDAY}{_NAME}\s+(?P<day>\d\d?)\s+{_CLOCK}{_ZONE}\s+(?P<year>\d{{4}})",
        rf"(?P<first>\d\d?)(?P<between>[/.-])(?P<second_number>\d\d?)(?P=between)(?P<year>\d{{4}}),?[\st]+{_CLOCK}{_ZONE}",
    )
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ZONES = {
    "z": 0,
    "ut": 0,
    "utc": 0,
    "gmt": 0,
    "cet": 1,
    "cest": 2,
    "est": -5,
    "edt": -4,
    "cst": -6,
    "cdt": -5,
    "mst": -7,
    "mdt": -6,
    "pst": -8,
    "pdt": -7,
    "jst": 9,
}
_HELD = re.compile(
    r"(?:\{\s*\"(?:\$date|_?seconds)\"\s*:\s*(?:\{\s*\"\$numberLong\"\s*:)?|/Date\(|@)\s*"
    r"(?:\"([^\"]+)\"|(-?\d+(?:\.\d+)?))\s*(?:[,}+\-)].*)?",
    re.S,
)
"""{"$date": ...}, {"seconds": ..., "nanos": ...}, /Date(...)/ and @... hold the time."""
_LISTED = re.compile(r"\[\s*\d{4}(?:\s*,\s*\d+){2,6}\s*\]")
"""[2026, 6, 1, 12, 0, 0, 123000000]: how Java's Jackson writes a time."""


def moment_of(written: str | None) -> str | None:
    """The time in ISO 8601, or the number of an epoch; None for a form that is not known."""
    if not written:
        return None
    text = written.strip().strip('"').strip()
    if _LISTED.fullmatch(text):
        year, month, day, *clock = map(int, re.findall(r"\d+", text))
        hour, minute, second, part = (*clock, 0, 0, 0, 0)[:4]
        return _time(year, month, day, hour, minute, second, part // 1000, 0)
    if held := _HELD.fullmatch(text):
        return moment_of(held[1] or held[2])
    text = text.strip("[]") if text.startswith("[") else text
    if re.fullmatch(r"-?\d{1,19}(?:[.,]\d+)?", text) and not re.fullmatch(r"(?:19|20)\d{6}(?:\d{6}(?:\d{3})?)?", text):
        return text.replace(",", ".")
    found = next((found for form in _FORMS if (found := form.fullmatch(text))), None)
    return None if found is None else _read(found.groupdict())


def is_moment(value: Any) -> bool:
    """Whether a value is a time: a text of a known form, or an epoch in seconds to nanoseconds between 2000 and 2100."""
    if isinstance(value, str) and re.fullmatch(r"\d{9,19}(\.\d+)?", value):
        value = float(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return any(946_684_800 * scale <= value <= 4_102_444_800 * scale for scale in (1, 10**3, 10**6, 10**9))
    return isinstance(value, str) and len(value) <= 60 and not re.fullmatch(r"[-+\d.,]*", value) and bool(moment_of(value))


def logged_time(times: Iterable[Any]) -> str | None:
    """Of the times that a record names, the first that is understood; else the first that says anything."""
    given = [time if isinstance(time, str) else json_text(time) for time in times if time not in (None, "", 0)]
    return next(filter(moment_of, given), given[0] if given else None)


def _read(found: dict[str, str | None]) -> str | None:
    zone = (found.get("zone") or "z").lower()
    month, day = found.get("month"), found.get("day")
    if found.get("week"):
        try:
            of_week = date.fromisocalendar(int(found["year"]), int(found["week"]), int(day or 1))
        except ValueError:  # a week 54
            return None
        found, month, day = found | {"year": str(of_week.year)}, of_week.month, of_week.day
    elif name := found.get("name"):
        month = next((number for number, known in enumerate(_MONTHS, 1) if name.lower().startswith(known)), None)
    elif found.get("between"):
        day, month = found["first"], found["second_number"]
        if found["between"] != "." and day != month and (int(day) > 12) == (int(month) > 12):
            return None  # either may be the month
        if int(month) > 12:
            day, month = month, day
    if month is None or zone not in _ZONES:
        return None
    hour = int(found.get("hour") or 0)
    if half := found.get("half"):
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half.lower() == "p" else 0)
    offset = int(found.get("hours") or 0) * 60 + int(found.get("minutes") or 0)
    offset = offset * (-1 if found.get("sign") == "-" else 1) + _ZONES[zone] * 60
    year = int(found["year"])
    return _time(
        year + (2000 if len(found["year"]) == 2 else 0),
        int(month),
        int(day),
        hour,
        int(found.get("minute") or 0),
        int(found.get("second") or 0),
        int((found.get("part") or "0")[:6].ljust(6, "0")),
        offset,
    )


def _time(year: int, month: int, day: int, hour: int, minute: int, second: int, microsecond: int, offset: int) -> str | None:
    try:
        return datetime(
            year, month, day, hour, minute, min(second, 59), microsecond, timezone(timedelta(minutes=offset))
        ).isoformat()
    except ValueError:  # the 31st of June
        return None

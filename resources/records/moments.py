"""Reads the time of a log record in the forms that DuckDB does not read: "01/Jun/2026:12:00:00 +0200", {"$date": ...}. Of two
numbers with slashes one must be the only one that can be the month; with dots, the day is first. A time without an offset is
UTC; an epoch is left to the macro plain_moment."""

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
    "z": 0, "ut": 0, "utc": 0, "gmt": 0, "cet": 1, "cest": 2, "est": -5, "edt": -4, "cst": -6, "cdt": -5, "mst": -7, "mdt": -6,
    "pst": -8, "pdt": -7, "jst": 9,
}  # fmt: skip
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
    match = next(filter(None, (form.fullmatch(text) for form in _FORMS)), None)
    return None if match is None else _read({name: part for name, part in match.groupdict().items() if part})


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


def _read(written: dict[str, str]) -> str | None:
    zone, year = written.get("zone", "z").lower(), int(written["year"])
    month, day = int(written.get("month", 0)), int(written.get("day", 0))
    if "week" in written:
        try:
            of_week = date.fromisocalendar(year, int(written["week"]), day or 1)
        except ValueError:  # a week 54
            return None
        year, month, day = of_week.year, of_week.month, of_week.day
    elif name := written.get("name", "").lower():
        month = next((number for number, known in enumerate(_MONTHS, 1) if name.startswith(known)), 0)
    elif between := written.get("between"):
        first, second = written["first"], written["second_number"]
        day, month = int(first), int(second)
        if between != "." and first != second and (day > 12) == (month > 12):
            return None  # either may be the month
        if month > 12:
            day, month = month, day
    if not month or zone not in _ZONES:
        return None
    hour = int(written.get("hour", 0))
    if half := written.get("half"):
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half.lower() == "p" else 0)
    offset = int(written.get("hours", 0)) * 60 + int(written.get("minutes", 0))
    offset = offset * (-1 if written.get("sign") == "-" else 1) + _ZONES[zone] * 60
    microsecond = int(written.get("part", "0")[:6].ljust(6, "0"))
    minute, second_of_minute = int(written.get("minute", 0)), int(written.get("second", 0))
    year += 2000 if len(written["year"]) == 2 else 0
    return _time(year, month, day, hour, minute, second_of_minute, microsecond, offset)


def _time(year: int, month: int, day: int, hour: int, minute: int, second: int, microsecond: int, offset: int) -> str | None:
    try:
        return datetime(
            year, month, day, hour, minute, min(second, 59), microsecond, timezone(timedelta(minutes=offset))
        ).isoformat()
    except ValueError:  # the 31st of June
        return None

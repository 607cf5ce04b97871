"""Describes a source in seconds: lists at most LISTED objects and reads the first records of a few of them (first, last, some
between). Nothing is written, and no record stays."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import chain, islice

from model_ops.jobs import counted
from resources.inspecting.proposed_fields import proposed_fields
from resources.reading import recognised_format
from resources.records import (
    BY_NAME,
    FORMATS,
    FieldMapping,
    Format,
    RecordProblem,
    Records,
    detect,
    mapped_format,
    read_object,
    record_of,
    wrapped_fields,
)
from resources.sources import LogObject, SourceSettings, days_in, objects_after, open_object

_USER = re.compile(r'"(user|user_id|userId|end_user|safety_identifier)"\s*:\s*"[^"]')
_WORKLOAD = re.compile(r'"workload(?:_id)?"\s*:\s*"([^"\\]+)"')
_SYSTEM = re.compile(r'"role"\s*:\s*"(system|developer)"')

LISTED = 1_000
OPENED = 3
RECORDS = 200
"""First records of an object that are sampled."""
PROBLEMS = 1_000
"""Most broken lines of an object before its first records."""


@dataclass
class FirstLook:
    """What `check`, `init`, `inspect` and the forecast of `run` know of a source: its objects, and their first records."""

    listed: list[LogObject] = field(default_factory=list)
    """The first objects."""
    has_more: bool = False
    opened: int = 0
    days: tuple[date, date] | None = None
    """The first and last day in keys, else of the objects' times."""
    formats: Counter[str] = field(default_factory=Counter)
    """Sampled records by format."""
    unknown_records: int = 0
    malformed: int = 0
    """Number of sampled lines that are no JSON object, and the place of the first, as URI:ROW."""
    first_malformed: str = ""
    unknown_keys: str = ""
    has_tools: bool = False
    with_system: int = 0
    """Number of records with a system prompt."""
    has_users: bool = False
    workloads: Counter[str] = field(default_factory=Counter)
    """Sampled records by the workload that they name."""
    characters: list[int] = field(default_factory=list)
    """Characters of the records' JSON."""
    record_days: Counter[date] = field(default_factory=Counter)
    """Sampled records by the day that they name, else by that of their object's key."""
    token_ids: list[int] = field(default_factory=list)
    """The least and the largest of sampled pre-tokenized records."""
    names_days: bool = False
    problems: list[tuple[str, str]] = field(default_factory=list)
    """(uri, sentence) of opened objects without a readable record."""
    proposed: dict[str, str] = field(default_factory=dict)
    """`fields` that would read the records of no known format, if any."""

    @property
    def objects(self) -> int:
        return len(self.listed)

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.listed)

    @property
    def first_uri(self) -> str:
        return self.listed[0].uri if self.listed else ""

    @property
    def uris(self) -> frozenset[str]:
        return frozenset(item.uri for item in self.listed)

    @property
    def holds_logs(self) -> bool:
        return any("interactions" in BY_NAME[name].fills for name in self.formats)

    @property
    def holds_feedback_only(self) -> bool:
        return bool(self.formats) and not self.holds_logs


def first_look(name: str, source: SourceSettings, listed: int = LISTED, opened: int = OPENED) -> FirstLook:
    """Describes one source. Raises SourceError if it cannot be listed. For an empty source, `objects` is 0."""
    items = list(islice(objects_after(name, source), listed + 1))
    return look_at(items[:listed], source, len(items) > listed, opened)


def look_at(items: list[LogObject], source: SourceSettings, has_more: bool = False, opened: int = OPENED) -> FirstLook:
    """Describes objects that were listed already."""
    look = FirstLook(items, has_more)
    keyed = [day for item in items for day in days_in(item.uri)]
    days = keyed or [item.modified.astimezone(UTC).date() for item in items]
    look.days, look.names_days = (min(days), max(days)) if days else None, bool(keyed)
    step = max(1, (len(items) - 1) / max(1, opened - 1))
    chosen = sorted({round(place * step) for place in range(opened) if round(place * step) < len(items)})
    for place in chosen:
        _look_into(items[place], source, look)
    return look


def _look_into(item: LogObject, source: SourceSettings, look: FirstLook) -> None:
    named = None if source.format == "auto" else FORMATS[source.format]
    look.opened += 1
    try:
        with open_object(item) as file:
            parts = list(_first_parts(read_object(file, item.uri, bool(named and named.plain_text))))
    except OSError as error:
        look.problems.append((item.uri, f"cannot be read: {error}"))
        return
    part = parts[-1] if parts and isinstance(parts[-1], Records) else parts[0] if parts else None
    if part is None:
        look.problems.append((item.uri, "is empty"))
    elif isinstance(part, RecordProblem):
        look.problems.append((item.uri, part.message))
    else:
        _count(part, named, source.fields, look, item.uri)


def _first_parts(parts: Iterator[Records | RecordProblem]) -> Iterator[Records | RecordProblem]:
    """The parts up to the first records: broken lines may come before them."""
    for part in islice(parts, PROBLEMS):
        yield part
        if isinstance(part, Records):
            return


def _count(part: Records, named: Format | None, fields: FieldMapping | None, look: FirstLook, uri: str) -> None:
    texts = part.raw[:RECORDS].to_pylist()
    parsed = [record_of(text) for text in texts]
    records = [record for record in parsed if record is not None]
    rows = part.rows[:RECORDS].to_pylist()
    broken = [row for row, record in zip(rows, parsed, strict=True) if record is None]
    look.malformed += len(broken)
    look.first_malformed = look.first_malformed or (f"{uri}:{broken[0]}" if broken else "")
    look.characters += map(len, texts)
    look.record_days.update(day for text in texts for day in islice(chain(day_of_record(text), days_in(uri)), 1))
    look.has_users = look.has_users or any(map(_USER.search, texts))
    look.workloads.update(match.group(1) for text in texts if (match := _WORKLOAD.search(text)))
    look.with_system += sum(_SYSTEM.search(text) is not None for text in texts)
    if named is fields is None:
        fields = next(filter(None, map(wrapped_fields, records)), None)
    first = named or detect(part.sample or records) or detect(records)
    unknown = []
    for record in records:
        own = _format_of(record, named, fields, first)
        if own is None:
            unknown.append(record)
            look.unknown_records += 1
            look.unknown_keys = look.unknown_keys or ", ".join(sorted(map(str, record))[:8])[:120]
            continue
        look.formats[own.name] += 1
        if ids := [
            number
            for value in record.values()
            if own.name == "tokens" and isinstance(value, list)
            for number in value
            if type(number) is int and number != -100
        ]:
            look.token_ids = [min(ids + look.token_ids), max(ids + look.token_ids)]
        look.has_tools = look.has_tools or _offers_tools(record)
    if unknown and not named and not look.proposed:
        look.proposed = proposed_fields(unknown)
    if len(unknown) == len(records):
        reason = mapped_format(unknown[0], fields) if fields and unknown else ""
        look.problems.append(
            (
                uri,
                "its first records are "
                + (f"not of the format {named.name}" if named else "of no known log format")
                + (f", and the first one {reason}" if reason else "")
                + (f"; the first one's keys: {look.unknown_keys}" if look.unknown_keys else ""),
            )
        )


def _format_of(record: dict, named: Format | None, fields: FieldMapping | None, first: Format | None) -> Format | None:
    if named:
        return named if named.accepts(record) else None
    mapped = mapped_format(record, fields) if fields else ""
    if not isinstance(mapped, str):
        return mapped[0]
    return recognised_format(record, first) if first else None


def _offers_tools(record: dict) -> bool:
    places = [record, *(value for value in record.values() if isinstance(value, dict))]
    if any(place.get("tools") or place.get("functions") for place in places):
        return True
    turns = [
        turn
        for place in places
        for name in ("messages", "traj", "conversations")
        if isinstance(place.get(name), list)
        for turn in place[name]
    ]
    return any(isinstance(turn, dict) and (turn.get("tool_calls") or turn.get("role") == "tool") for turn in turns)


FAR = 365
REMEDY = "if their clock was wrong, correct them, or leave them out with first_day or last_day; they cost nothing"
_TIME = re.compile(
    r'"(?:created|created_?at|ts|timestamp|time|date|start_?time|started_?at|end_?time)"\s*:\s*"?'
    r"(?:(?P<day>\d{4}-\d\d-\d\d)|(?P<epoch>\d{9,19})\b)",
    re.IGNORECASE,
)


def far_days(days: Mapping[date, int]) -> str:
    """One sentence on the days that are more than FAR days from those with the most records; "" without any."""
    groups: list[list[date]] = []
    for day in sorted(days):
        if not groups or (day - groups[-1][-1]).days > FAR:
            groups.append([])
        groups[-1].append(day)
    groups.sort(key=lambda group: (sum(days[day] for day in group), group[-1]))
    far = sorted(day for group in groups[:-1] for day in group)
    count = sum(days[day] for day in far)
    listed = ", ".join(map(str, far[:3])) + (f" and {len(far) - 3:,} other days" if len(far) > 3 else "")
    lie = "lies" if count == 1 else "lie"
    return f"{counted(count, 'record')} of {listed} {lie} more than a year from the others" if far else ""


def day_of_record(text: str) -> Iterator[date]:
    """The first day that a record's JSON names under a key of times. Digits: seconds, or 10^3, 10^6 or 10^9 to a second."""
    if match := _TIME.search(text):
        try:
            epoch = match["epoch"]
            yield (
                date.fromisoformat(match["day"])
                if match["day"]
                else datetime.fromtimestamp(int(epoch) / 1000 ** ((len(epoch) - 8) // 3), UTC).date()
            )
        except (ValueError, OverflowError, OSError):
            return

"""Joins OpenTelemetry spans without content with the log records that have it, which may lie in other objects of their source.

    joining = SpanEvents(connection, extraction, "math-tutor")
    joined = joining.join(entries, failed)       # rows into `staged`; joined.partners: objects that must be read together
    apart.objects_to_join(ledger, sources)       # objects that were read apart and may have parts of one call

Span and log records meet by trace and span id, in whatever order their objects arrive. The joined row is at the place of the
span. The ledger keeps, as an object's format, whether its spans or log records still wait for the others. Of the objects that
were read before, those are read again when an object of the same days brings the other side; and so are objects that made rows
of spans for which further log records come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

import duckdb
import pyarrow as pa

from resources.reading.extraction import LINES, Extraction
from resources.reading.formats import FORMATS
from resources.reading.ledger import Entry, Ledger
from resources.sql_files import rows, run, sql_text

OPEN_SPANS, OPEN_EVENTS, OPEN_BOTH, JOINED = "otlp_open_spans", "otlp_open_events", "otlp_open", "otlp_joined"
OPEN = (OPEN_SPANS, OPEN_EVENTS, OPEN_BOTH)
"""In place of `otlp` in the ledger: objects with spans without log records, with log records without a span, with both; and
JOINED, with spans that all have log records."""
PAGE_BYTES = 4 << 20
"""Text of joined spans that is extracted at a time; a line is never split."""


@dataclass(frozen=True)
class Joined:
    """The result of joining a batch, by object index. records: what to add to the numbers of records; partners: uris of
    objects with other parts of an object's rows; formats: the ledger's format of objects with spans or log records."""

    records: dict[int, int]
    partners: dict[int, set[str]]
    formats: dict[int, str]


class SpanEvents:
    """The spans and log records of one batch. The format's `sides` fills the table `span_sides`; `join` joins them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, extraction: Extraction, workload: str):
        self._connection, self._extraction, self._workload = connection, extraction, workload

    def events_wait(self) -> bool:
        """Whether a log record waits for its span: the batch has to go on."""
        return ("event",) in run(self._connection, "reading/spans/sides_found").fetchall()

    def join(self, entries: Mapping[int, Entry], failed: Sequence[int]) -> Joined:
        """Extracts each span with its log records as one record; spans without any are skipped.

        entries: the batch's objects by index. failed: objects that could not be read; their parts are left out.
        """
        self._connection.execute(sql_text("reading/batch/delete_objects").format(table="span_sides"), {"objects": failed})
        if not run(self._connection, "reading/spans/sides_found").fetchall():
            return Joined({}, {}, {})
        run(self._connection, "reading/spans/ranked_sides")
        run(self._connection, "reading/spans/joined_spans", page_bytes=PAGE_BYTES)
        for page in self._pages():
            self._extraction.extract_joined_spans(FORMATS["otlp"], page)
        run(self._connection, "reading/spans/skip_spans", workload=self._workload)
        partners: dict[int, set[str]] = {}
        for index, other in run(self._connection, "reading/spans/partners").fetchall():
            partners.setdefault(index, set()).add(entries[other].uri)
        formats = {
            index: OPEN_BOTH if has_spans and has_events else OPEN_SPANS if has_spans else OPEN_EVENTS
            for index, has_spans, has_events in run(self._connection, "reading/spans/open_objects").fetchall()
        }
        for (index,) in run(self._connection, "reading/spans/objects_with_spans").fetchall():
            formats.setdefault(index, JOINED)
        return Joined(dict(run(self._connection, "reading/spans/record_counts").fetchall()), partners, formats)

    def _pages(self) -> Iterator[pa.Table]:
        for (number,) in run(self._connection, "reading/spans/pages").fetchall():
            yield rows(self._connection, "reading/spans/lines", number=number).cast(LINES)


@dataclass
class ReadApart:
    """What one run has read of spans: the objects with their batch, and by batch the uris of earlier objects that made rows
    of its spans."""

    objects: dict[tuple[str, str], tuple[Entry, int]] = field(default_factory=dict)
    earlier: dict[int, set[str]] = field(default_factory=dict)

    def begin_batch(self, connection: duckdb.DuckDBPyConnection, formats: Collection[str]) -> int:
        """The number of a batch that is joined, with `interactions` attached and not yet written. formats: of its objects."""
        number = len(self.earlier)
        waiting = {OPEN_EVENTS, OPEN_BOTH}.intersection(formats)
        found = run(connection, "reading/spans/rows_elsewhere").fetchall() if waiting else []
        self.earlier[number] = {uri for (uri,) in found}
        return number

    def add(self, entry: Entry, batch: int) -> None:
        """Notes an object that was read."""
        if entry.format in (*OPEN, JOINED):
            self.objects[entry.source, entry.uri] = entry, batch

    def objects_to_join(self, ledger: Ledger, sources: Collection[str]) -> list[Entry]:
        """Objects to read together since one may have the log records of another's spans: none of them, or at least two.

        One of two was read in this run, and not in one batch with the other; their days are neighbours, or the ledger's tables
        show that they have a span in common.
        """
        if not self.objects:
            return []
        named = set().union(*self.earlier.values())
        waiting = ledger.whole(OPEN, named, sources)
        chosen = {(entry.source, entry.uri): entry for entry in waiting if entry.uri in named}
        events, spans = (OPEN_EVENTS, OPEN_BOTH), (OPEN_SPANS, OPEN_BOTH, JOINED)
        if chosen:
            chosen |= {place: entry for place, (entry, batch) in self.objects.items()
                       if entry.format in events and self.earlier[batch]}
        for formats, others in ((spans, events), (events, spans)):
            by_day: dict[tuple[str, date], list[Entry]] = {}
            for entry in waiting:
                if entry.format in others:
                    for day in _days(entry):
                        by_day.setdefault((entry.source, day), []).append(entry)
            for entry, batch in self.objects.values():
                if entry.format not in formats:
                    continue
                near = {day + timedelta(days=days) for day in _days(entry) for days in (-1, 0, 1)}
                found = [other for day in near for other in by_day.get((entry.source, day), ())
                         if self.objects.get((other.source, other.uri), (other, -1))[1] != batch]
                chosen |= {(each.source, each.uri): each for each in [entry, *found] if found}
        return sorted(chosen.values(), key=lambda entry: (entry.source, entry.uri))


def _days(entry: Entry) -> set[date]:
    return {*entry.days, entry.fallback_day}

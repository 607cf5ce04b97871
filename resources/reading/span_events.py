"""Joins OpenTelemetry spans without content with the log records that have it, by trace and span id, in whatever order their
objects arrive. The ledger keeps, as an object's format, whether its spans or log records still wait for the others: such
objects are read again when an object of neighbouring days brings the other side.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

import duckdb
import pyarrow as pa

from resources.lake import rows, run, sql_text
from resources.records import FORMATS, LINES, Extraction
from resources.sources import Ledger, LedgerEntry

OPEN_SPANS, OPEN_EVENTS, OPEN_BOTH, JOINED = "otlp_open_spans", "otlp_open_events", "otlp_open", "otlp_joined"
OPEN = (OPEN_SPANS, OPEN_EVENTS, OPEN_BOTH)
"""In place of `otlp` in the ledger: objects with spans without log records, with log records without a span, with both; and
JOINED, with spans that all have log records."""
PAGE_BYTES = 4 << 20
"""Text of joined spans that is extracted at a time; a line is never split."""


@dataclass(frozen=True)
class JoinReport:
    """The result of joining a batch, by object index."""

    records: dict[int, int]
    """What to add to the numbers of records."""
    partners: dict[int, set[str]]
    """Uris of the objects with other parts of an object's rows."""
    formats: dict[int, str]
    """The ledger's format of objects with spans or log records."""


class SpanEvents:
    """The spans and log records of one batch. The format's `sides` fills the table `span_sides`; `join` joins them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, extraction: Extraction, workload: str):
        self._connection, self._extraction, self._workload = connection, extraction, workload

    def events_wait(self) -> bool:
        """Whether a log record waits for its span: the batch has to go on."""
        return ("event",) in run(self._connection, "reading/spans/sides_found").fetchall()

    def join(self, entries: Mapping[int, LedgerEntry], failed: Sequence[int]) -> JoinReport:
        """Extracts each span with its log records as one record; spans without any are skipped. entries: the batch's objects by
        index. failed: objects that could not be read; their parts are left out."""
        self._connection.execute(sql_text("reading/batch/delete_objects").format(table="span_sides"), {"objects": failed})
        if not run(self._connection, "reading/spans/sides_found").fetchall():
            return JoinReport({}, {}, {})
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
        return JoinReport(dict(run(self._connection, "reading/spans/record_counts").fetchall()), partners, formats)

    def _pages(self) -> Iterator[pa.Table]:
        for (number,) in run(self._connection, "reading/spans/pages").fetchall():
            yield rows(self._connection, "reading/spans/lines", number=number).cast(LINES)


@dataclass
class ReadApart:
    """What one run has read of spans."""

    objects: dict[tuple[str, str], tuple[LedgerEntry, int]] = field(default_factory=dict)
    """Objects with spans or log records, by source and uri, each with the number of its batch."""
    earlier: dict[int, set[str]] = field(default_factory=dict)
    """By batch, the uris of earlier objects that made rows of its spans."""

    def add(self, connection: duckdb.DuckDBPyConnection, read: Sequence[LedgerEntry]) -> None:
        """Notes the objects of a batch. Call it once `interactions` is attached, and before the batch is committed."""
        number = len(self.earlier)
        waits = any(entry.format in (OPEN_EVENTS, OPEN_BOTH) for entry in read)
        elsewhere = run(connection, "reading/spans/rows_elsewhere").fetchall() if waits else []
        self.earlier[number] = {uri for (uri,) in elsewhere}
        self.objects |= {(entry.source, entry.uri): (entry, number) for entry in read if entry.format in (*OPEN, JOINED)}

    def objects_to_join(self, ledger: Ledger, sources: Collection[str]) -> list[LedgerEntry]:
        """Objects to read together since one may have the log records of another's spans: none of them, or at least two. One of
        two was read in this run, and not in one batch with the other; their days are neighbours, or the ledger's tables show
        that they have a span in common."""
        if not self.objects:
            return []
        named = set().union(*self.earlier.values())
        waiting = ledger.whole(OPEN, named, sources)
        chosen = {(entry.source, entry.uri): entry for entry in waiting if entry.uri in named}
        events, spans = (OPEN_EVENTS, OPEN_BOTH), (OPEN_SPANS, OPEN_BOTH, JOINED)
        if chosen:
            chosen |= {
                place: entry for place, (entry, batch) in self.objects.items() if entry.format in events and self.earlier[batch]
            }
        for formats, others in ((spans, events), (events, spans)):
            by_day: dict[tuple[str, date], list[LedgerEntry]] = {}
            for entry in waiting:
                if entry.format in others:
                    for day in _days(entry):
                        by_day.setdefault((entry.source, day), []).append(entry)
            for entry, batch in self.objects.values():
                if entry.format not in formats:
                    continue
                near = {day + timedelta(days=days) for day in _days(entry) for days in (-1, 0, 1)}
                apart = [
                    other
                    for day in near
                    for other in by_day.get((entry.source, day), ())
                    if self.objects.get((other.source, other.uri), (other, -1))[1] != batch
                ]
                chosen |= {(each.source, each.uri): each for each in [entry, *apart] if apart}
        return sorted(chosen.values(), key=lambda entry: (entry.source, entry.uri))


def _days(entry: LedgerEntry) -> set[date]:
    return {*entry.days, entry.fallback_day}

"""Joins records in two parts, which may lie in different objects of a folder: requests and responses of a batch API, by
`custom_id`, and of vLLM's log. Words such as inputs/ or _output are left out of path and name, and where a folder has several
requests with one id, the file name decides. All such files of a folder are read in one batch, in whatever order they arrived.

    pairing_key("s3://logs/batches/2026-06-01/outputs/b1_output.jsonl")     # .../2026-06-01, b1
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

import duckdb
import pyarrow as pa

from resources.lake import rows, run, sql_text
from resources.records import FORMATS, LINES, Extraction, Format
from resources.sources import Ledger, LedgerEntry

SIDES = {f"{word}{plural}" for word in ("input", "output", "request", "response", "result", "error") for plural in ("", "s")}
"""Words in a path that distinguish requests from responses."""
PAIRS_TOGETHER = 20_000
"""Pairs that are extracted at a time."""


@dataclass(frozen=True)
class JoinReport:
    """The result of joining a batch, by object index."""

    records: dict[int, int]
    """What to add to the numbers of records."""
    partners: dict[int, set[str]]
    """Uris of the objects with other parts of an object's rows."""
    formats: dict[int, str]
    """The ledger's format of objects with spans or log records."""


class Pairing:
    """The pairs of one batch. A format's select fills the table `pair_sides`; `pair` joins them once all objects are read."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, extraction: Extraction):
        self._connection, self._extraction = connection, extraction

    def pair(self, form: Format, entries: Mapping[int, LedgerEntry], failed: Sequence[int]) -> JoinReport:
        """Extracts each pair as one record at the position of its response; sides without a partner go to quarantine. entries:
        the batch's objects by index. failed: objects that could not be read; their sides are left out."""
        self._connection.execute(sql_text("reading/batch/delete_objects").format(table="pair_sides"), {"objects": failed})
        self._connection.register("places", _places(entries))
        run(self._connection, "reading/pairing/pair_matches", form=form.name)
        run(self._connection, "reading/pairing/matched_pairs")
        run(self._connection, f"reading/formats/{form.name}/pairs")
        run(self._connection, "reading/pairing/quarantine_unpaired", form=form.name)
        self._connection.unregister("places")
        requests = run(self._connection, "reading/pairing/paired_requests").fetchall()
        partners: dict[int, set[str]] = {}
        for index, other in run(self._connection, "reading/pairing/partners").fetchall():
            partners.setdefault(index, set()).add(entries[other].uri)
        for page in self._pages():
            self._extraction.extract_pairs(form, page)
        # a request counts as part of its response's record
        return JoinReport({index: -count for index, count in requests}, partners, {})

    def _pages(self) -> Iterator[pa.Table]:
        begin, number, fielded = 0, PAIRS_TOGETHER, self._extraction.fielded
        while page := rows(self._connection, "reading/pairing/page", begin=begin, number=number, fielded=fielded).cast(LINES):
            yield page
            begin += PAIRS_TOGETHER


def _places(entries: Mapping[int, LedgerEntry]) -> pa.Table:
    objects = sorted(entries)
    keys = [pairing_key(entries[index].uri) for index in objects]
    return pa.table(
        {
            "object": pa.array(objects, pa.int32()),
            "source": pa.array([entries[index].source for index in objects], pa.string()),
            "folder": pa.array([folder for folder, _ in keys], pa.string()),
            "stem": pa.array([stem for _, stem in keys], pa.string()),
        }
    )


def pairing_key(uri: str) -> tuple[str, str]:
    """The folder and the name of an object, without the words that distinguish requests from responses."""
    *folders, name = uri.split("/")
    words = re.split(r"[_\-. ]+", name.split(".", 1)[0])
    return (
        "/".join(folder for folder in folders if folder.lower() not in SIDES),
        "_".join(word for word in words if word.lower() not in SIDES),
    )


def with_unreadable_partners(
    entries: Mapping[int, LedgerEntry], listed: Collection[str], unreadable: Collection[str]
) -> dict[int, str]:
    """Objects that must wait because a partner is gone or cannot be read, each with the reason: read alone, they would lose
    pairs. `entries` are readable objects by index, `listed` all uris of this run, `unreadable` uris that failed."""
    waiting: dict[int, str] = {}
    lost = set(unreadable)
    spreading = True
    while spreading:
        spreading = False
        for index, entry in entries.items():
            missing = [uri for uri in entry.partners if uri not in listed or uri in lost]
            if index not in waiting and missing:
                waiting[index] = f"{missing[0]} holds the other side of its request-response pairs and cannot be read"
                lost.add(entry.uri)
                spreading = True
    return waiting


def partners_to_reread(paired: Sequence[LedgerEntry], wanted: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """Batch files to read again because another file of their folder is being read. `paired` are all known batch files,
    `wanted` the files to be read now. A file whose partners are gone is left out, so the rows that were made from it stay."""
    if not paired:
        return []
    chosen = {(entry.source, entry.uri) for entry in wanted}
    here = {entry.uri for entry in (*paired, *wanted)}
    while torn := {
        entry.uri
        for entry in paired
        if entry.uri in here and (entry.source, entry.uri) not in chosen and not here.issuperset(entry.partners)
    }:
        here -= torn
    folders = {(entry.source, pairing_key(entry.uri)[0]) for entry in wanted}
    return [
        entry
        for entry in paired
        if entry.uri in here
        and (entry.source, entry.uri) not in chosen
        and (entry.source, pairing_key(entry.uri)[0]) in folders
    ]


OPEN_SPANS, OPEN_EVENTS, OPEN_BOTH, JOINED = "otlp_open_spans", "otlp_open_events", "otlp_open", "otlp_joined"
OPEN = (OPEN_SPANS, OPEN_EVENTS, OPEN_BOTH)
"""In place of `otlp` in the ledger: objects with spans without log records, with log records without a span, with both; and
JOINED, with spans that all have log records."""
PAGE_BYTES = 4 << 20
"""Text of joined spans that is extracted at a time; a line is never split."""


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

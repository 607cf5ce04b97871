"""Reads log objects into DuckDB, batch by batch: checked rows with ids and hashes. A reading thread opens the objects and sorts
their records by format (`routing`), `Extraction` turns them into rows, and parts of one record that lie in different objects
are joined (`pairing`). It commits nothing to the lake."""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time
from typing import Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from resources.lake import run, sql_text, workbench
from resources.reading.pairing import OPEN, JoinReport, Pairing, SpanEvents, with_unreadable_partners
from resources.reading.routing import ObjectPart, format_of_faulty, named_format, read_objects, unknown_record
from resources.records import BY_NAME, FORMATS, LINES, LONGEST_BYTES, RAW_BYTES, Extraction, Format, RecordProblem, Records
from resources.sources import LedgerEntry, RemoteError, SourceSettings, workloads_of
from stores import s3

T = TypeVar("T")

_WAIT_SECONDS = 0.1
"""How soon the thread notices that its consumer has stopped."""


def read_ahead(source: Iterable[T], items: int) -> Iterator[T]:
    """The items of `source`, at most `items` of them waiting in memory."""
    ready: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(items)
    stopped = threading.Event()

    def hand_over(more: bool, value: T | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put((more, value), timeout=_WAIT_SECONDS)
                return
            except queue.Full:
                continue

    def read() -> None:
        try:
            for item in source:
                hand_over(True, item)
                if stopped.is_set():
                    return
            hand_over(False, None)
        except BaseException as error:  # raised again where the items are used
            hand_over(False, error)

    thread = threading.Thread(target=read, name="read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            more, value = ready.get()
            if more:
                yield value
            elif value is None:
                return
            else:
                raise value
    finally:
        stopped.set()
        thread.join()


PART_BYTES = 48 << 20
"""Bytes of text that are parsed at a time."""
BATCH_BYTES = 512 << 20
"""Bytes of text whose rows are committed together; an object is never split."""
OBJECT_BYTES = 1_000
"""Bytes that an object counts towards BATCH_BYTES besides its text."""
MEMORY_MIB = 1280
"""DuckDB's memory limit; beyond it, DuckDB spills to disk. The text being read and Delta's writer come on top."""
PARTS_AHEAD = 6
"""Number of parts that the reading thread may be ahead."""
PROBLEMS_TOGETHER = 1024
"""Problems of the line reader that are inserted into the quarantine at a time."""

BATCH_TABLES = (
    "batch", "quarantined", "skipped", "pair_sides", "span_sides", "staged", "staged_feedback", "no_interactions",
    "no_feedback", "unread_keys",
)  # fmt: skip

_QUARANTINED = pa.schema(
    [("object", pa.int32()), ("row", pa.int64()), ("error_code", pa.string()), ("message", pa.string()), ("raw", pa.binary())]
)


@contextmanager
def open_staging(workload: str, sources: dict[str, SourceSettings]) -> Iterator[Staging]:
    """A DuckDB of its own with the ingest's tables and functions."""
    with workbench() as connection:
        connection.execute(f"set memory_limit = '{MEMORY_MIB} MiB'")
        yield Staging(connection, workload, sources)


@dataclass(frozen=True)
class StagedBatch:
    """Objects whose rows lie together in the tables of one DuckDB."""

    connection: duckdb.DuckDBPyConnection
    workload: str
    read: list[LedgerEntry]
    """Objects that were read to their end, as the ledger takes them once their rows are committed."""
    failed: list[LedgerEntry]
    """Objects that could not be read to their end: they left no row, and `problem` says why."""
    records: int
    """Number of records of the objects in `read`, as the reader counted them."""
    clashes: dict[str, Counter[str]]
    """Numbers of records in which two names of one column contradict each other, by source and by what was read."""


class Staging:
    """Stages objects in the tables of a DuckDB, a batch at a time."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, workload: str, sources: dict[str, SourceSettings]):
        self.connection, self.workload, self.sources = connection, workload, sources
        others = workloads_of(workload, sources) - {workload}
        fields = {name: source.fields.given for name, source in sources.items() if source.fields}
        self.extraction = Extraction(connection, workload, [workload, *sorted(others)], fields)
        self.pairing = Pairing(connection, self.extraction)
        self.spans = SpanEvents(connection, self.extraction, workload)

    def batches(self, entries: list[LedgerEntry]) -> Iterator[StagedBatch]:
        """Stages the objects in their order. The tables hold one batch until the next one is asked for. A batch is complete
        with the object that takes it past BATCH_BYTES of text; the next objects are being read while the caller works on it."""
        unreadable: set[str] = set()
        batch = None
        for part in read_ahead(read_objects(entries, self.sources), PARTS_AHEAD):
            batch = batch or BatchBuilder(self, entries, unreadable)
            batch.add(part)
            if part.ends_object and batch.is_full:
                yield batch.build()
                batch = None
        if batch:
            yield batch.build()


@dataclass
class _StagedObject:
    entry: LedgerEntry
    format: str = ""
    partners: set[str] = field(default_factory=set)
    records: int = 0
    content_sha256: str = ""
    problem: str = ""
    """Why it leaves no row."""


class BatchBuilder:
    """Collects the parts of objects in the tables of one batch; `build` completes them. A batch has a builder of its own."""

    def __init__(self, stage: Staging, entries: Sequence[LedgerEntry], unreadable: set[str]):
        """entries: all objects that are staged in this run. unreadable: uris that failed in it; `build` adds to it."""
        self._stage, self._entries, self._unreadable, self._connection = stage, entries, unreadable, stage.connection
        self._objects: dict[int, _StagedObject] = {}
        self._paired_formats: set[str] = set()
        self._events_wait = any(entry.format in OPEN for entry in entries)
        self._waiting: dict[str, list[pa.Table]] = {}
        """Records that were not extracted yet, by format (schema LINES)."""
        self._problems: list[dict[str, Any]] = []
        self._waiting_bytes = self._bytes = self._described = 0
        # One transaction for a batch: DuckDB copies a table's last rows again with every separately committed insert
        self._connection.begin()
        for table in BATCH_TABLES:
            run(self._connection, f"reading/batch/{table}")

    @property
    def is_full(self) -> bool:
        """Whether the batch has enough text, and no record in it waits for a further object. Requests and responses have to
        meet: with batch files among the objects, the batch ends with the last object."""
        waits = self._paired_formats or self._events_wait
        return not waits and self._bytes + OBJECT_BYTES * len(self._objects) >= BATCH_BYTES

    def add(self, part: ObjectPart) -> None:
        if isinstance(part.content, RecordProblem):
            self._add_problem(part.index, part.content)
        elif isinstance(part.content, Records) and part.format is not None:
            self._add_records(part.index, part.format, part.content)
        else:
            staged = self._object(part.index)
            staged.content_sha256 = part.content_sha256
            if isinstance(part.content, OSError):
                staged.problem = _reason(part.content, staged.entry.uri)

    def build(self) -> StagedBatch:
        """Completes the tables: pairs and spans are joined, and objects that failed leave no row."""
        self._extract_waiting()
        self._insert_problems()
        self._fail_with_partners()
        failed = sorted(index for index, each in self._objects.items() if each.problem)
        entries = {index: each.entry for index, each in self._objects.items()}
        for name in sorted(self._paired_formats):
            self._note_joined(self._stage.pairing.pair(FORMATS[name], entries, failed))
        self._note_joined(self._stage.spans.join(entries, failed))
        for index, parts in run(self._connection, "reading/batch/further_parts").fetchall():
            self._objects[index].records += parts
        run(self._connection, "reading/extraction/insert_skipped", workload=self._stage.workload)
        run(self._connection, "reading/extraction/delete_faulty")
        for table in ("staged", "staged_feedback", "quarantined", "skipped", "batch") if failed else ():
            self._connection.execute(sql_text("reading/batch/delete_objects").format(table=table), {"objects": failed})
        self._connection.commit()
        return self._batch()

    def _batch(self) -> StagedBatch:
        days = {uri: row for uri, *row in run(self._connection, "reading/batch/object_days").fetchall()}
        unread: dict[str, list[list[Any]]] = {}
        clashes: dict[str, Counter[str]] = {}
        sources = {each.entry.uri: each.entry.source for each in self._objects.values()}
        for uri, kind, path, other, records in run(self._connection, "reading/batch/object_unread_keys").fetchall():
            if kind == "unread":
                unread.setdefault(uri, []).append([path, other, int(records)])
            else:
                column, winner = path.split("\t")
                clashes.setdefault(sources[uri], Counter())[f"{column}: {winner} is read, not {other}"] += int(records)
        read, failed = [], []
        for each in self._objects.values():
            entry = each.entry
            if each.problem:
                failed.append(replace(entry, state="failed", problem=each.problem))
                continue
            records, own_days = days[entry.uri]
            read.append(
                replace(
                    entry,
                    state="read",
                    problem="",
                    rows=records,
                    format=each.format,
                    partners=tuple(sorted(each.partners)),
                    days=tuple(sorted({*own_days, *(entry.days or (entry.fallback_day,))})),
                    read_as=self._stage.sources[entry.source].read_as,
                    content_sha256=each.content_sha256,
                    unread_keys=json.dumps(unread[entry.uri]) if entry.uri in unread else "",
                )
            )
        records = sum(each.records for each in self._objects.values() if not each.problem)
        return StagedBatch(self._connection, self._stage.workload, read, failed, records, clashes)

    def _object(self, index: int) -> _StagedObject:
        return self._objects.setdefault(index, _StagedObject(self._entries[index]))

    def _note_joined(self, joined: JoinReport) -> None:
        for index, count in joined.records.items():
            self._objects[index].records += count
        for index, uris in joined.partners.items():
            self._objects[index].partners |= uris
        for index, name in joined.formats.items():
            self._objects[index].format = name

    def _fail_with_partners(self) -> None:
        """Fails objects whose requests or responses lie in an object that failed."""
        self._unreadable.update(each.entry.uri for each in self._objects.values() if each.problem)
        readable = {index: each.entry for index, each in self._objects.items() if not each.problem}
        listed = {entry.uri for entry in self._entries}
        for index, reason in with_unreadable_partners(readable, listed, self._unreadable).items():
            self._objects[index].problem = reason
            self._unreadable.add(self._objects[index].entry.uri)

    def _add_problem(self, index: int, problem: RecordProblem) -> None:
        self._object(index).records += 1
        self._bytes += len(problem.raw)
        self._problems.append({"object": index, **vars(problem)})
        if len(self._problems) == PROBLEMS_TOGETHER:
            self._insert_problems()

    def _insert_problems(self) -> None:
        self._insert("quarantined", pa.Table.from_pylist(self._problems, schema=_QUARANTINED))
        self._problems = []

    def _add_records(self, index: int, form: Format, part: Records) -> None:
        self._note_format(index, form)
        part = self._without_too_long(index, form, part)
        self._object(index).records += len(part.rows)
        objects = pa.array(np.full(len(part.rows), index, np.int32))
        self._waiting.setdefault(form.name, []).append(pa.table([objects, part.rows, part.raw], schema=LINES))
        self._waiting_bytes += part.raw.nbytes
        self._bytes += part.raw.nbytes
        if self._waiting_bytes >= PART_BYTES:
            self._extract_waiting()

    def _note_format(self, index: int, form: Format) -> None:
        """An object's format in the ledger is the one of its first records, or one whose records are paired."""
        staged = self._object(index)
        if form.paired:
            self._paired_formats.add(form.name)
            staged.format = form.name
        staged.format = staged.format or form.name

    def _without_too_long(self, index: int, form: Format, part: Records) -> Records:
        """The part without records that are too long; these go to quarantine. A line of spans holds many records."""
        most = LONGEST_BYTES // 2 if form.paired else LONGEST_BYTES
        lengths = pc.binary_length(part.raw).to_numpy(zero_copy_only=False)
        too_long = lengths > most
        if form.spans or not too_long.any():
            return part
        for place in np.flatnonzero(too_long):
            message = (
                f"the record has {lengths[place] / (1 << 20):.0f} MiB of text, and at most {most >> 20} MiB are read: "
                "shorten its messages, or log pictures and files as base64 or links"
            )
            raw = part.raw[place].as_buffer()[:RAW_BYTES].to_pybytes()
            self._add_problem(index, RecordProblem(part.rows[place].as_py(), "too_long", message, raw))
        short = pa.array(~too_long)
        return replace(part, rows=part.rows.filter(short), raw=part.raw.filter(short))

    def _extract_waiting(self) -> None:
        self._describe_objects()
        self._insert_problems()
        while self._waiting:  # a record of another format waits again
            name, tables = self._waiting.popitem()
            for line in self._stage.extraction.extract(BY_NAME[name], pa.concat_tables(tables), self._route):
                if line.format is None:
                    self._object(line.index).records -= 1  # it was counted as a line
                    self._add_problem(line.index, unknown_record(line.row, line.text, self._named_format(line.index)))
                    continue
                if line.format.paired:
                    self._note_format(line.index, line.format)
                self._waiting.setdefault(line.format.name, []).append(
                    pa.table([[line.index], [line.row], [line.text]], schema=LINES)
                )
        self._waiting_bytes = 0
        self._events_wait = self._events_wait or self._stage.spans.events_wait()

    def _route(self, index: int, text: str, form: Format) -> Format | None:
        return format_of_faulty(text, form, self._named_format(index) is not None)

    def _named_format(self, index: int) -> Format | None:
        return named_format(self._entries[index], self._stage.sources)

    def _describe_objects(self) -> None:
        added = list(self._objects)[self._described :]
        self._described += len(added)
        entries = [self._entries[index] for index in added]
        self._insert(
            "batch",
            pa.table(
                {
                    "object": pa.array(added, pa.int32()),
                    "source": pa.array([entry.source for entry in entries], pa.string()),
                    "uri": pa.array([entry.uri for entry in entries], pa.string()),
                    "workloads": pa.array(
                        [list(self._stage.sources[entry.source].workloads.items()) for entry in entries],
                        pa.map_(pa.string(), pa.string()),
                    ),
                    "fallback_ts": pa.array(
                        [datetime.combine(entry.fallback_day, time(), UTC) for entry in entries], pa.timestamp("us", tz="UTC")
                    ),
                }
            ),
        )

    def _insert(self, table: str, rows: pa.Table) -> None:
        self._connection.register("arriving", rows)
        self._connection.execute(sql_text("reading/batch/insert").format(table=table))
        self._connection.unregister("arriving")


def _reason(error: OSError, uri: str) -> str:
    """Why an object could not be read, without its uri and other libraries' messages: they may quote a signed request."""
    reason = str(error).removeprefix(f"{uri}: ") if isinstance(error, s3.S3Error | RemoteError) else error.strerror
    return reason or type(error).__name__

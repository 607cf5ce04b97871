"""Reads log objects into DuckDB, batch by batch: checked rows with ids and hashes. It commits nothing to the lake.

    with staging(workload, sources) as stage:
        for batch in stage.batches(entries):      # the tables staged, staged_feedback and quarantined are complete
            batch.read, batch.failed

A reading thread opens the objects and sorts their records by format (`routing`), a format's SQL turns them into rows
(`extraction`), and requests and responses that lie in different objects are joined (`pairing`), and so are spans and their log
records (`span_events`). Records of many small objects
are parsed together; those of a large object a part at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from resources.reading.extraction import LINES, Extraction
from resources.reading.formats import BY_NAME, FORMATS, Format
from resources.reading.ledger import Entry
from resources.reading.log_reader import LONGEST_BYTES, RAW_BYTES, Problem, Records
from resources.reading.pairing import Pairing, with_unreadable_partners
from resources.reading.read_ahead import read_ahead
from resources.reading.remote import RemoteError
from resources.reading.routing import format_of_faulty, named_format, read_objects, unknown_record
from resources.reading.sources import SourceSettings
from resources.reading.span_events import OPEN, SpanEvents
from resources.sql_files import run, sql_text, workbench
from stores import s3

PART_BYTES = 48 << 20
"""Bytes of text that are parsed at a time."""
BATCH_BYTES = 512 << 20
"""Bytes of text whose rows are committed together; an object is never split."""
MEMORY_MIB = 1280
"""DuckDB's memory limit; beyond it, DuckDB spills to disk. The text being read and Delta's writer come on top."""
PARTS_AHEAD = 6
"""Number of parts that the reading thread may be ahead."""
PROBLEMS_TOGETHER = 1024
"""Problems of the line reader that are inserted into the quarantine at a time."""

BATCH_TABLES = (
    "batch", "quarantined", "skipped", "pair_sides", "span_sides", "staged", "staged_feedback", "no_interactions",
    "no_feedback", "unread_keys",
)

_QUARANTINED = pa.schema(
    [("object", pa.int32()), ("row", pa.int64()), ("error_code", pa.string()), ("message", pa.string()),
     ("raw", pa.binary())]
)


@contextmanager
def staging(workload: str, sources: dict[str, SourceSettings]) -> Iterator[Staging]:
    """A DuckDB of its own with the ingest's tables and functions."""
    with workbench() as connection:
        connection.execute(f"set memory_limit = '{MEMORY_MIB} MiB'")
        yield Staging(connection, workload, sources)


@dataclass(frozen=True)
class Batch:
    """Objects that are staged together. Objects that could not be read to their end left no row; `problem` says why.

    formats, partners, digests: by uri, the format, the uris that hold the other side of its pairs, the sha256 of the bytes.
    """

    read: list[Entry]
    failed: list[Entry]
    records: int
    formats: dict[str, str]
    partners: dict[str, tuple[str, ...]]
    digests: dict[str, str]


class Staging:
    """The tables of one batch at a time."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, workload: str, sources: dict[str, SourceSettings]):
        self.connection, self.workload, self.sources = connection, workload, sources
        others = {name for source in sources.values() for name in source.workloads.values()} - {workload}
        fields = {name: source.fields.given for name, source in sources.items() if source.fields}
        self._extraction = Extraction(connection, workload, [workload, *sorted(others)], self._route, fields)
        self._pairing = Pairing(connection, self._extraction)
        self._spans = SpanEvents(connection, self._extraction, workload)
        self._entries: list[Entry] = []
        self._unreadable: set[str] = set()

    def batches(self, entries: list[Entry]) -> Iterator[Batch]:
        """Stages the objects in their order. The tables hold one batch until the next one is asked for.

        A batch is complete with the object that takes it past BATCH_BYTES of text; the next objects are being read while
        the caller works on it.
        """
        self._entries, self._unreadable = entries, set()
        self._rejoining = any(entry.format in OPEN for entry in entries)
        self._begin()
        for part in read_ahead(read_objects(entries, self.sources), PARTS_AHEAD):
            if isinstance(part.found, Problem):
                self._quarantine_later(part.index, part.found)
            elif isinstance(part.found, Records):
                self._extract_later(part.index, part.format, part.found)
            else:
                self._ended[part.index] = part.found is None
                self._digests[part.index] = part.content_sha256
                if part.found is not None:
                    self._failures[part.index] = _reason(part.found, entries[part.index].uri)
                # requests and responses have to meet: with batch files among the objects, the batch ends with the last object
                if not (self._paired_formats or self._events_wait) and self._bytes + 1_000 * len(self._ended) >= BATCH_BYTES:
                    yield self._complete()
                    self._begin()
        if self._ended:
            yield self._complete()
        else:
            self.connection.commit()

    def _begin(self) -> None:
        # One transaction for a batch: DuckDB copies a table's last rows again with every separately committed insert
        self.connection.begin()
        for table in BATCH_TABLES:
            run(self.connection, f"reading/batch/{table}")
        self._ended: dict[int, bool] = {}  # by object: whether it was read to its end
        self._digests: dict[int, str] = {}
        self._failures: dict[int, str] = {}
        self._described: set[int] = set()
        self._paired_formats: set[str] = set()
        self._events_wait = self._rejoining
        self._partners: dict[int, set[str]] = {}
        self._formats: dict[int, str] = {}
        self._records: Counter[int] = Counter()
        self._waiting: dict[str, list[pa.Table]] = {}
        self._problems: list[dict[str, Any]] = []
        self._waiting_bytes = self._bytes = 0

    def _complete(self) -> Batch:
        self._extract_waiting()
        self._quarantine()
        self._describe(set(self._ended))
        self._fail_with_partners()
        failed = [index for index, whole in self._ended.items() if not whole]
        for name in sorted(self._paired_formats):
            pairs = self._pairing.pair(FORMATS[name], {index: self._entries[index] for index in self._ended}, failed)
            self._records.subtract(pairs.paired_requests)
            for index, uris in pairs.partners.items():
                self._partners.setdefault(index, set()).update(uris)
        joined = self._spans.join({index: self._entries[index] for index in self._ended}, failed)
        self._records.update(joined.records)
        self._formats |= joined.formats
        for index, uris in joined.partners.items():
            self._partners.setdefault(index, set()).update(uris)
        self._records.update(dict(run(self.connection, "reading/batch/further_parts").fetchall()))
        run(self.connection, "reading/extraction/insert_skipped", workload=self.workload)
        run(self.connection, "reading/extraction/delete_faulty")
        if failed:
            for table in ("staged", "staged_feedback", "quarantined", "skipped", "batch"):
                self.connection.execute(sql_text("reading/batch/delete_objects").format(table=table), {"objects": failed})
            for index in failed:
                del self._records[index]
        self.connection.commit()
        return Batch(
            read=[self._entries[index] for index, whole in self._ended.items() if whole],
            failed=[
                replace(self._entries[index], state="failed", problem=self._failures[index]) for index in failed
            ],
            records=sum(self._records.values()),
            formats={self._entries[index].uri: name for index, name in self._formats.items()},
            partners={self._entries[index].uri: tuple(sorted(others)) for index, others in self._partners.items()},
            digests={self._entries[index].uri: digest for index, digest in self._digests.items()},
        )

    def _fail_with_partners(self) -> None:
        """Fails objects whose requests or responses lie in an object that failed."""
        self._unreadable.update(self._entries[index].uri for index, whole in self._ended.items() if not whole)
        readable = {index: self._entries[index] for index, whole in self._ended.items() if whole}
        listed = {entry.uri for entry in self._entries}
        for index, reason in with_unreadable_partners(readable, listed, self._unreadable).items():
            self._ended[index], self._failures[index] = False, reason
            self._unreadable.add(self._entries[index].uri)

    def _describe(self, objects: set[int]) -> None:
        """Adds the objects' rows to the table `batch`."""
        added = sorted(objects - self._described)
        self._described.update(added)
        entries = [self._entries[index] for index in added]
        self._insert("batch", pa.table({
            "object": pa.array(added, pa.int32()),
            "source": pa.array([entry.source for entry in entries], pa.string()),
            "uri": pa.array([entry.uri for entry in entries], pa.string()),
            "workloads": pa.array(
                [list(self.sources[entry.source].workloads.items()) for entry in entries],
                pa.map_(pa.string(), pa.string()),
            ),
            "fallback_ts": pa.array(
                [datetime.combine(entry.fallback_day, time(), UTC) for entry in entries], pa.timestamp("us", tz="UTC")
            ),
        }))

    def _route(self, index: int, text: str, form: Format) -> Format | None:
        return format_of_faulty(text, form, named_format(self._entries[index], self.sources) is not None)

    def _quarantine_later(self, index: int, problem: Problem) -> None:
        self._records[index] += 1
        self._bytes += len(problem.raw)
        self._problems.append({"object": index, **vars(problem)})
        if len(self._problems) == PROBLEMS_TOGETHER:
            self._quarantine()

    def _quarantine(self) -> None:
        self._insert("quarantined", pa.Table.from_pylist(self._problems, schema=_QUARANTINED))
        self._problems = []

    def _extract_later(self, index: int, form: Format, part: Records) -> None:
        if form.paired:
            self._paired_formats.add(form.name)
            self._formats[index] = form.name
        self._formats.setdefault(index, form.name)
        part = self._without_too_long(index, form, part)
        self._records[index] += len(part.rows)
        objects = pa.array(np.full(len(part.rows), index, np.int32))
        self._waiting.setdefault(form.name, []).append(pa.table([objects, part.rows, part.raw], schema=LINES))
        self._waiting_bytes += part.raw.nbytes
        self._bytes += part.raw.nbytes
        if self._waiting_bytes >= PART_BYTES:
            self._extract_waiting()

    def _without_too_long(self, index: int, form: Format, part: Records) -> Records:
        """The part without records that are too long; these go to quarantine. A line of spans holds many records."""
        most = LONGEST_BYTES // 2 if form.paired else LONGEST_BYTES
        lengths = pc.binary_length(part.raw).to_numpy(zero_copy_only=False)
        too_long = lengths > most
        if form.spans or not too_long.any():
            return part
        for place in np.flatnonzero(too_long):
            words = (f"the record has {lengths[place] / (1 << 20):.0f} MiB of text, and at most {most >> 20} MiB are read: "
                     "shorten its messages, or log pictures and files as base64 or links")
            raw = part.raw[place].as_buffer()[:RAW_BYTES].to_pybytes()
            self._quarantine_later(index, Problem(part.rows[place].as_py(), "too_long", words, raw))
        kept = pa.array(~too_long)
        return replace(part, rows=part.rows.filter(kept), raw=part.raw.filter(kept))

    def _extract_waiting(self) -> None:
        """Extracts the waiting records."""
        self._describe(set(self._records))
        self._quarantine()
        while self._waiting:  # a record of another format waits again
            name, tables = self._waiting.popitem()
            for line in self._extraction.extract(BY_NAME[name], pa.concat_tables(tables)):
                if line.format is None:
                    self._records[line.index] -= 1  # it was counted as a line
                    named = named_format(self._entries[line.index], self.sources)
                    self._quarantine_later(line.index, unknown_record(line.row, line.text, named))
                    continue
                if line.format.paired:
                    self._paired_formats.add(line.format.name)
                    self._formats[line.index] = line.format.name
                self._waiting.setdefault(line.format.name, []).append(
                    pa.table([[line.index], [line.row], [line.text]], schema=LINES)
                )
        self._waiting_bytes = 0
        self._events_wait = self._events_wait or self._spans.events_wait()

    def _insert(self, table: str, rows: pa.Table) -> None:
        self.connection.register("arriving", rows)
        self.connection.execute(sql_text("reading/batch/insert").format(table=table))
        self.connection.unregister("arriving")


def _reason(error: OSError, uri: str) -> str:
    """Why an object could not be read, without its uri. Messages of other libraries are left out: they may quote a signed
    request."""
    if isinstance(error, s3.S3Error | RemoteError):
        return str(error).removeprefix(f"{uri}: ")
    return error.strerror or type(error).__name__

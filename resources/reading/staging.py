"""Log objects in DuckDB, batch by batch: from their records to checked rows with ids and hashes. It commits nothing.

    with staging(workload, sources) as stage:
        for batch in stage.batches(entries):      # the tables staged, staged_feedback, quarantined are complete
            batch.read, batch.failed

Records of many small objects are parsed together; of a large object, a part at a time, while a thread reads the next
ones. Python sees bytes and Arrow buffers; JSON is taken apart by sql/reading/formats/<format>/.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from resources.reading import s3
from resources.reading.digested import Digested
from resources.reading.formats import FORMATS, Format
from resources.reading.halves import place_of
from resources.reading.json_text import json_text, mended
from resources.reading.ledger import Entry
from resources.reading.log_reader import Problem, Records
from resources.reading.mixed import Kinds, stray, unknown
from resources.reading.object_reader import read_object
from resources.reading.otlp import call_told_by
from resources.reading.prefetch import Opened, prefetched
from resources.reading.read_ahead import read_ahead
from resources.reading.remote import RemoteError
from resources.reading.responses_api import chat_of
from resources.reading.sources import SourceSettings
from resources.sql_files import rows, run, sql_text, workbench

PART_BYTES = 48 << 20
"""Text that is parsed in one go."""
BATCH_BYTES = 512 << 20
"""Text whose rows are committed together; an object is never parted."""
MEMORY_MIB = 1280
"""What DuckDB keeps in memory; beyond that it spills to disk. Text being read and Delta's writer come on top."""
PARTS_AHEAD = 6
"""Parts of objects that wait, read and split, while others are parsed."""
PROBLEMS_TOGETHER = 1024
"""Problems of the line reader that go to quarantine in one go."""
PAIRS_TOGETHER = 20_000
"""Pairs that are put together and parsed in one go."""
USER_HASH_KEY = "MILLRACE_USER_HASH_KEY"
"""The environment variable with the key of the hashes of user ids."""

BATCH_ROWS = 2048
"""Rows of an Arrow batch: DuckDB's threads share a part's batches."""

MACROS = ("reading/macros/moment", *(f"reading/macros/{name}" for name in (
    "record_digest", "openai_role", "openai_message", "openai_messages", "openai_tools", "openai_tool_calls", "otlp_items",
    "transcript_messages", "templated_messages", "error_text", "choice_number", "parameters"
)))

_LINES = pa.schema([("object", pa.int32()), ("row", pa.int64()), ("raw", pa.large_string())])
_QUARANTINED = pa.schema(
    [("object", pa.int32()), ("row", pa.int64()), ("error_code", pa.string()), ("message", pa.string()),
     ("raw", pa.binary())]
)


@contextmanager
def staging(workload: str, sources: dict[str, SourceSettings]) -> Iterator[Staging]:
    """A DuckDB of its own with the ingest's tables and functions."""
    with workbench() as connection:
        connection.execute(f"set memory_limit = '{MEMORY_MIB} MiB'")
        connection.create_function("call_told_by", call_told_by, ["VARCHAR"], "VARCHAR")
        connection.create_function("chat_of", chat_of, ["VARCHAR"], "VARCHAR")
        connection.create_function("arguments_as_text", _arguments_as_text, ["VARCHAR"], "VARCHAR")
        for macro in MACROS:
            run(connection, macro)
        yield Staging(connection, workload, sources)


@dataclass(frozen=True)
class Read:
    """Some of what one object held: records of a format, a problem; at its end None with the sha256 of its bytes, or the error
    that was its end."""

    index: int
    format: Format | None
    found: Records | Problem | OSError | None
    content_sha256: str = ""


@dataclass(frozen=True)
class Batch:
    """Objects that are staged together. Those that could not be opened or read to their end have left no row, and say why."""

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
        self._entries: list[Entry] = []
        self._lost: set[str] = set()  # objects that could not be read

    def batches(self, entries: list[Entry]) -> Iterator[Batch]:
        """Stages the objects in their order. What a batch left in the tables is gone when the next one is asked for.

        A batch is complete with the object that takes it past BATCH_BYTES of text; the next ones are being read while
        the caller works on it.
        """
        self._entries, self._lost = entries, set()
        self._begin()
        for read in read_ahead(self._read_objects(), PARTS_AHEAD):
            if isinstance(read.found, Problem):
                self._set_aside(read.index, read.found)
            elif isinstance(read.found, Records):
                self._wait(read.index, read.format, read.found)
            else:
                self._ended[read.index] = read.found is None
                self._digests[read.index] = read.content_sha256
                if read.found is not None:
                    self._failures[read.index] = _reason(read.found, self._entries[read.index].uri)
                # sides of pairs have to meet: with some, nothing is cut before the end
                if not self._halved and self._bytes + 1_000 * len(self._ended) >= BATCH_BYTES:
                    yield self._complete()
                    self._begin()
        if self._ended:
            yield self._complete()
        else:
            self.connection.commit()

    def _begin(self) -> None:
        # One transaction for a batch: DuckDB copies a table's last rows anew with every insert that is committed by itself
        self.connection.begin()
        for table in (
            "batch", "quarantined", "skipped", "pair_sides", "staged", "staged_feedback", "no_interactions", "no_feedback"
        ):
            run(self.connection, f"reading/batch/{table}")
        self._ended: dict[int, bool] = {}  # by object: whether it was read to its end
        self._digests: dict[int, str] = {}
        self._failures: dict[int, str] = {}
        self._named: set[int] = set()
        self._halved: set[str] = set()
        self._partners: dict[int, set[str]] = {}
        self._formats: dict[int, str] = {}
        self._records: Counter[int] = Counter()
        self._waiting: dict[str, list[pa.Table]] = {}
        self._problems: list[dict[str, Any]] = []
        self._waiting_bytes = self._bytes = 0

    def _complete(self) -> Batch:
        self._flush()
        self._quarantine()
        self._name(set(self._ended))
        self._spread_failures()
        failed = [index for index, whole in self._ended.items() if not whole]
        for name in sorted(self._halved):
            self._pair(FORMATS[name], failed)
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

    def _spread_failures(self) -> None:
        """Where an object cannot be read, or is gone, those that hold other halves of its records wait with it: read alone,
        they would lose the pairs that are in the tables."""
        self._lost.update(self._entries[index].uri for index, whole in self._ended.items() if not whole)
        here = {entry.uri for entry in self._entries}
        spreading = True
        while spreading:
            spreading = False
            for index, whole in self._ended.items():
                missing = [uri for uri in self._entries[index].partners if uri not in here or uri in self._lost]
                if whole and missing:
                    self._ended[index], spreading = False, True
                    self._failures[index] = f"{missing[0]} holds the other halves of its records and cannot be read"
                    self._lost.add(self._entries[index].uri)

    def _name(self, objects: set[int]) -> None:
        """The objects' rows in the table `batch`."""
        added = sorted(objects - self._named)
        self._named.update(added)
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

    def _read_objects(self) -> Iterator[Read]:
        """What the objects hold, in their order. Runs in the reading thread: it touches no DuckDB."""
        for index, (_, opened) in enumerate(prefetched(self._entries)):
            try:
                yield Read(index, None, None, (yield from self._read(index, opened)))
            except OSError as error:  # the caller records the object as failed: it is tried again next time
                yield Read(index, None, error)

    def _read(self, index: int, opened: Opened) -> Generator[Read, None, str]:
        """What one object holds; returns the sha256 of its bytes, "" where they were not all read."""
        named = self._named_format(index)
        kinds = Kinds(named)
        with opened() as raw:
            file = Digested(raw)
            for found in read_object(file, self._entries[index].uri, named is not None and named.plain_text):
                for form, told in [(None, found)] if isinstance(found, Problem) else kinds.add(found):
                    yield Read(index, form, told)
                if kinds.hopeless:
                    return file.digest()
            for form, told in kinds.rest():
                yield Read(index, form, told)
            return file.digest()

    def _named_format(self, index: int) -> Format | None:
        """The format that the recipe names for the object's source; None where each record tells its own."""
        return FORMATS.get(self.sources[self._entries[index].source].format)

    def _set_aside(self, index: int, problem: Problem) -> None:
        self._records[index] += 1
        self._bytes += len(problem.raw)
        self._problems.append({"object": index, **vars(problem)})
        if len(self._problems) == PROBLEMS_TOGETHER:
            self._quarantine()

    def _quarantine(self) -> None:
        self._insert("quarantined", pa.Table.from_pylist(self._problems, schema=_QUARANTINED))
        self._problems = []

    def _flush(self) -> None:
        """Turns the records that wait into rows."""
        self._name(set(self._records))
        self._quarantine()
        while self._waiting:  # records of another format than their file's wait anew
            name, tables = self._waiting.popitem()
            self._extract(FORMATS[name], pa.concat_tables(tables))
        self._waiting_bytes = 0

    def _wait(self, index: int, form: Format, part: Records) -> None:
        if form.halves:
            self._halved.add(form.name)
            self._formats[index] = form.name
        self._formats.setdefault(index, form.name)
        self._records[index] += len(part.rows)
        objects = pa.array(np.full(len(part.rows), index, np.int32))
        self._waiting.setdefault(form.name, []).append(
            pa.table([objects, part.rows, part.raw], schema=_LINES)
        )
        self._waiting_bytes += part.raw.nbytes
        self._bytes += part.raw.nbytes
        if self._waiting_bytes >= PART_BYTES:
            self._flush()

    def _extract(self, form: Format, lines: pa.Table) -> None:
        self.connection.register("lines", pa.Table.from_batches(lines.to_batches(BATCH_ROWS)))
        run(self.connection, "reading/extraction/records")
        if "interactions" in form.fills:
            self._stage(form)
        if form.halves:
            self._halved.add(form.name)
            run(self.connection, f"reading/formats/{form.name}/pair_sides")
        self._view("extracted_feedback", f"reading/formats/{form.name}/feedback" if "feedback" in form.fills else None)
        others = {name for source in self.sources.values() for name in source.workloads.values()} - {self.workload}
        run(self.connection, "reading/extraction/checked_feedback", workload=self.workload,
            workloads=[self.workload, *sorted(others)])
        self._send_on(form)
        if "interactions" in form.fills:
            run(self.connection, "reading/extraction/quarantine_checked")
        if "feedback" in form.fills:
            run(self.connection, "reading/extraction/stage_feedback")
            run(self.connection, "reading/extraction/quarantine_feedback")
        self._mend(form)
        run(self.connection, "reading/extraction/quarantine_lines")
        self.connection.unregister("lines")

    def _mend(self, form: Format) -> None:
        """Lines that are no JSON for half a character only are read once more, with U+FFFD in its place."""
        run(self.connection, "reading/extraction/lines_without_record")
        found = run(self.connection, "reading/extraction/surrogate_lines").fetchall()
        torn = [(index, row, whole) for index, row, text in found if (whole := mended(text)) is not None]
        if torn:
            self._take_out([(index, row) for index, row, _ in torn], "rowless")
            for index, row, whole in torn:
                self._again(form, index, row, whole)

    def _send_on(self, form: Format) -> None:
        """Records of the part that are of another format go there; those of none, to quarantine."""
        if form.streamed:  # what was put together from a stream's pieces is of no other format
            return
        found = run(self.connection, "reading/extraction/faulty_records").fetchall()
        owners = [stray(text, form, self._named_format(index) is not None) for index, _, text in found]
        others = [(place, own) for place, own in zip(found, owners, strict=True) if own is not form]
        if not others:
            return
        self._take_out([(index, row) for (index, row, _), _ in others], "staged", "checked_feedback", "halves")
        for (index, row, text), own in others:
            if own is None:
                self._records[index] -= 1  # it was counted as a line
                self._set_aside(index, unknown(row, text, self._named_format(index)))
            else:
                if own.halves:
                    self._formats[index] = own.name
                self._again(own, index, row, text)

    def _again(self, form: Format, index: int, row: int, text: str) -> None:
        """Has a line of the part, which was counted, read as a record of `form`."""
        self._waiting.setdefault(form.name, []).append(pa.table([[index], [row], [text]], schema=_LINES))

    def _take_out(self, places: list[tuple[int, int]], *tables: str) -> None:
        taken = pa.table({"object": pa.array([index for index, _ in places], pa.int32()),
                          "row": pa.array([row for _, row in places], pa.int64())})
        self.connection.register("other_records", taken)
        for table in tables:
            self.connection.execute(sql_text("reading/extraction/delete_records").format(table=table))
        self.connection.unregister("other_records")

    def _pair(self, form: Format, failed: list[int]) -> None:
        """Puts sides of pairs together. A pair is one record, at the place of its response."""
        self.connection.execute(sql_text("reading/batch/delete_objects").format(table="halves"), {"objects": failed})
        objects = sorted(self._ended)
        places = [place_of(self._entries[index].uri) for index in objects]
        self.connection.register("places", pa.table({
            "object": pa.array(objects, pa.int32()),
            "source": pa.array([self._entries[index].source for index in objects], pa.string()),
            "folder": pa.array([folder for folder, _ in places], pa.string()),
            "stem": pa.array([stem for _, stem in places], pa.string()),
        }))
        for query in ("pairing/matches", f"formats/{form.name}/pairs", "pairing/quarantine_unpaired"):
            run(self.connection, f"reading/{query}")
        self.connection.unregister("places")
        for index, number in run(self.connection, "reading/pairing/paired_requests").fetchall():
            self._records[index] -= number
        for index, other in run(self.connection, "reading/pairing/partners").fetchall():
            self._partners.setdefault(index, set()).add(self._entries[other].uri)
        begin = 0
        while page := rows(self.connection, "reading/pairing/page", begin=begin, number=PAIRS_TOGETHER).cast(_LINES):
            self._rows_of(form, page)
            begin += PAIRS_TOGETHER

    def _rows_of(self, form: Format, lines: pa.Table) -> None:
        self.connection.register("lines", pa.Table.from_batches(lines.to_batches(BATCH_ROWS)))
        run(self.connection, "reading/extraction/records")
        self._stage(form)
        run(self.connection, "reading/extraction/quarantine_checked")
        self.connection.unregister("lines")

    def _stage(self, form: Format) -> None:
        self._view("extracted", f"reading/formats/{form.rows_as or form.name}/interactions")
        key = os.environ.get(USER_HASH_KEY, "")
        run(self.connection, "reading/extraction/stage", workload=self.workload, user_hash_key=key)

    def _view(self, name: str, select: str | None) -> None:
        select = sql_text(select) if select else "select * from no_feedback"
        self.connection.execute(sql_text(f"reading/extraction/{name}").format(rows=select))

    def _insert(self, table: str, rows: pa.Table) -> None:
        self.connection.register("arriving", rows)
        self.connection.execute(sql_text("reading/batch/insert").format(table=table))
        self.connection.unregister("arriving")


def _reason(error: OSError, uri: str) -> str:
    """Why an object could not be read, without its uri. Words of other libraries may quote a signed request: left out."""
    if isinstance(error, s3.S3Error | RemoteError):
        return str(error).removeprefix(f"{uri}: ")
    return error.strerror or type(error).__name__


def _arguments_as_text(text: str) -> str:
    """Tool calls' arguments as JSON strings, as the OpenAI API has them, where a producer wrote objects."""
    try:
        value = json.loads(text)
        for message in value if isinstance(value, list) else [value]:
            if isinstance(message, dict):
                for holder in _callers(message):
                    if "arguments" in holder and not isinstance(holder["arguments"], str):
                        holder["arguments"] = json_text(holder["arguments"])
        return json_text(value)
    except (ValueError, RecursionError):  # nested, or with numbers, as no message is: what is no list of messages goes to
        return "0"  # quarantine


def _callers(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return [holder for holder in [*functions, message.get("function_call")] if isinstance(holder, dict)]

"""One batch of log objects in DuckDB: from their records to checked rows with ids and hashes. It commits nothing.

    with staging(workload, sources) as stage:
        failed = stage.read_all(entries)      # the tables staged, staged_feedback, quarantined are complete

Records of many small objects are parsed together; of a large object, a part at a time, while a thread reads the next
ones. Python sees bytes and Arrow buffers; JSON is taken apart by sql/ingest/<format>/.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from resources.decompress import decompressed
from resources.formats import FORMATS, Format, detect
from resources.ledger import Entry
from resources.log_reader import Problem, Records, read_records
from resources.prefetch import Opened, prefetched
from resources.read_ahead import read_ahead
from resources.sources import SourceSettings
from resources.sql_files import run, sql_text, workbench

PART_BYTES = 48 << 20
"""Text that is parsed in one go."""
PARTS_AHEAD = 2
"""Parts of objects that wait, read and split, while others are parsed."""
PROBLEMS_TOGETHER = 1024
"""Problems of the line reader that go to quarantine in one go."""
BATCH_ROWS = 2048
"""Rows of an Arrow batch: DuckDB's threads share a part's batches."""

MACROS = ("ingest/moment", *(f"ingest/macros/{name}" for name in (
    "role_called", "spoken", "turns", "offered", "transcript"
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
        connection.create_function("arguments_as_text", _arguments_as_text, ["VARCHAR"], "VARCHAR")
        for macro in MACROS:
            run(connection, macro)
        yield Staging(connection, workload, sources)


@dataclass(frozen=True)
class Read:
    """Some of what one object held: records of a format, a problem, or the error that ended the reading."""

    index: int
    format: Format | None
    found: Records | Problem | OSError


class Staging:
    """The tables of one batch. `records_read` is what the line reader saw by itself, plus further choices and turns."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, workload: str, sources: dict[str, SourceSettings]):
        self.connection, self.workload, self.sources = connection, workload, sources
        self.entries: list[Entry] = []
        self.formats: dict[int, str] = {}
        self._records: Counter[int] = Counter()
        self._waiting: dict[str, list[pa.Table]] = {}
        self._waiting_bytes = 0
        self._problems: list[dict[str, Any]] = []

    @property
    def records_read(self) -> int:
        return sum(self._records.values())

    def read_all(self, entries: list[Entry]) -> list[Entry]:
        """Stages the objects and returns those that could not be opened or read to their end; they leave no row."""
        self._begin(entries)
        failed = []
        for read in read_ahead(self._read_objects(), PARTS_AHEAD):
            if isinstance(read.found, OSError):  # the caller records the object as failed: it is tried again next time
                failed.append(read.index)
            elif isinstance(read.found, Problem):
                self._set_aside(read.index, read.found)
            else:
                self._wait(read.index, read.format, read.found)
        self._flush()
        self._quarantine()
        self._records.update(dict(run(self.connection, "ingest/further_parts").fetchall()))
        run(self.connection, "ingest/drop_checked")
        if failed:
            for table in ("staged", "staged_feedback", "quarantined", "batch"):
                self.connection.execute(sql_text("ingest/forget").format(table=table), {"objects": failed})
            for index in failed:
                del self._records[index]
        return [entries[index] for index in failed]

    def _begin(self, entries: list[Entry]) -> None:
        for table in ("batch", "quarantined", "staged", "staged_feedback", "no_interactions", "no_feedback"):
            run(self.connection, f"ingest/{table}")
        self.entries, self.formats, self._records = entries, {}, Counter()
        self._waiting, self._waiting_bytes, self._problems = {}, 0, []
        names = pa.table({
            "object": pa.array(range(len(entries)), pa.int32()),
            "source": [entry.source for entry in entries],
            "uri": [entry.uri for entry in entries],
            "workloads": pa.array(
                [list(self.sources[entry.source].workloads.items()) for entry in entries],
                pa.map_(pa.string(), pa.string()),
            ),
            "fallback_ts": pa.array(
                [datetime.combine(entry.fallback_day, time(), UTC) for entry in entries], pa.timestamp("us", tz="UTC")
            ),
        })
        self._insert("batch", names)

    def _read_objects(self) -> Iterator[Read]:
        """What the batch's objects hold, in their order. Runs in the reading thread: it touches no DuckDB."""
        for index, (_, opened) in enumerate(prefetched(self.entries)):
            try:
                yield from self._read(index, opened)
            except OSError as error:
                yield Read(index, None, error)

    def _read(self, index: int, opened: Opened) -> Iterator[Read]:
        entry = self.entries[index]
        wanted = self.sources[entry.source].format
        form: Format | None = None
        with opened() as file:
            for found in read_records(decompressed(file)):
                if form is None and isinstance(found, Records):
                    form = self._format(found, wanted)
                    if form is None:
                        yield Read(index, None, _other_format(found, wanted))
                        return
                yield Read(index, form, found)

    def _set_aside(self, index: int, problem: Problem) -> None:
        self._records[index] += 1
        self._problems.append({"object": index, **vars(problem)})
        if len(self._problems) == PROBLEMS_TOGETHER:
            self._quarantine()

    def _quarantine(self) -> None:
        self._insert("quarantined", pa.Table.from_pylist(self._problems, schema=_QUARANTINED))
        self._problems = []

    def _flush(self) -> None:
        """Turns the records that wait into rows."""
        for name, tables in self._waiting.items():
            self._extract(FORMATS[name], pa.concat_tables(tables))
        self._waiting, self._waiting_bytes = {}, 0

    def _format(self, part: Records, wanted: str) -> Format | None:
        if wanted == "auto":
            return detect(part.sample)
        return FORMATS[wanted] if any(map(FORMATS[wanted].recognises, part.sample)) else None

    def _wait(self, index: int, form: Format, part: Records) -> None:
        self.formats[index] = form.name
        self._records[index] += len(part.rows)
        objects = pa.array(np.full(len(part.rows), index, np.int32))
        self._waiting.setdefault(form.name, []).append(
            pa.table([objects, part.rows, part.raw], schema=_LINES)
        )
        self._waiting_bytes += part.raw.nbytes
        if self._waiting_bytes >= PART_BYTES:
            self._flush()

    def _extract(self, form: Format, lines: pa.Table) -> None:
        self.connection.register("lines", pa.Table.from_batches(lines.to_batches(BATCH_ROWS)))
        run(self.connection, "ingest/records")
        if "interactions" in form.fills:
            self._view("extracted", f"ingest/{form.name}/interactions")
            key = os.environ.get("MILLRACE_USER_HASH_KEY", "")
            run(self.connection, "ingest/stage", workload=self.workload, user_hash_key=key)
            run(self.connection, "ingest/quarantine_checked")
        self._view("extracted_feedback", f"ingest/{form.name}/feedback" if "feedback" in form.fills else None)
        run(self.connection, "ingest/checked_feedback", workload=self.workload)
        if "feedback" in form.fills:
            run(self.connection, "ingest/stage_feedback")
            run(self.connection, "ingest/quarantine_feedback")
        run(self.connection, "ingest/quarantine_lines")
        self.connection.unregister("lines")

    def _view(self, name: str, select: str | None) -> None:
        rows = sql_text(select) if select else "select * from no_feedback"
        self.connection.execute(sql_text(f"ingest/{name}").format(rows=rows))

    def _insert(self, table: str, rows: pa.Table) -> None:
        self.connection.register("arriving", rows)
        self.connection.execute(sql_text("ingest/insert").format(table=table))
        self.connection.unregister("arriving")


def _other_format(part: Records, wanted: str) -> Problem:
    keys = ", ".join(sorted(map(str, part.sample[0]))[:12]) if part.sample else "none"
    known = "a known log format" if wanted == "auto" else f"the format {wanted}"
    return Problem(0, "unknown_format", f"the records are not of {known}; the first one's keys: {keys[:200]}",
                   part.raw[0].as_py().encode()[:4096] if len(part.raw) else b"")


def _arguments_as_text(text: str) -> str:
    """Tool calls' arguments as JSON strings, as the OpenAI API has them, where a producer wrote objects."""
    try:
        value = json.loads(text)
    except RecursionError:  # no message is nested like this: what is no list of messages goes to quarantine
        return "0"
    for message in value if isinstance(value, list) else [value]:
        if isinstance(message, dict):
            for holder in _callers(message):
                if "arguments" in holder and not isinstance(holder["arguments"], str):
                    holder["arguments"] = json.dumps(holder["arguments"], ensure_ascii=False, separators=(",", ":"))
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _callers(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return [holder for holder in [*functions, message.get("function_call")] if isinstance(holder, dict)]

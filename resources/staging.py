"""One batch of log objects in DuckDB: from their records to checked rows with ids and hashes. It commits nothing.

    with staging(workload, sources) as stage:
        failed = stage.read_all(entries)      # the tables staged, staged_feedback, quarantined are complete

Records of many small objects are parsed together; of a large object, a part at a time. Python sees bytes and Arrow
buffers; JSON is taken apart by sql/ingest/<format>/.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, time
from typing import Any

import duckdb
import pyarrow as pa

from resources.decompress import decompressed
from resources.formats import FORMATS, Format, detect
from resources.ledger import Entry
from resources.log_reader import Problem, Records, read_records
from resources.sources import SourceSettings, open_object
from resources.sql_files import run, sql_text, workbench

PART_BYTES = 32 << 20
"""Text that is parsed in one go."""

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
        run(connection, "ingest/moment")
        yield Staging(connection, workload, sources)


class Staging:
    """The tables of one batch. `records_read` is what the line reader saw by itself, plus further choices and turns."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, workload: str, sources: dict[str, SourceSettings]):
        self.connection, self.workload, self.sources = connection, workload, sources
        self.entries: list[Entry] = []
        self.formats: dict[int, str] = {}
        self._records: Counter[int] = Counter()
        self._waiting: dict[str, list[pa.Table]] = {}
        self._waiting_bytes = 0

    @property
    def records_read(self) -> int:
        return sum(self._records.values())

    def read_all(self, entries: list[Entry]) -> list[Entry]:
        """Stages the objects and returns those that could not be opened or read to their end; they leave no row."""
        self._begin(entries)
        failed = []
        for index in range(len(entries)):
            try:
                self._read(index)
            except OSError:  # the caller records the object as failed, and it is tried again next time
                failed.append(index)
        self._flush()
        if failed:
            for table in ("staged", "staged_feedback", "quarantined", "batch"):
                self.connection.execute(sql_text("ingest/forget").format(table=table), {"objects": failed})
            for index in failed:
                del self._records[index]
        return [entries[index] for index in failed]

    def _begin(self, entries: list[Entry]) -> None:
        for table in ("batch", "records", "quarantined", "staged", "staged_feedback"):
            run(self.connection, f"ingest/{table}")
        self.entries, self.formats, self._records = entries, {}, Counter()
        self._waiting, self._waiting_bytes = {}, 0
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

    def _read(self, index: int) -> None:
        entry = self.entries[index]
        wanted = self.sources[entry.source].format
        form: Format | None = None
        problems: list[Problem] = []
        with open_object(entry.uri) as file:
            for part in read_records(decompressed(file)):
                if isinstance(part, Problem):
                    problems.append(part)
                    continue
                if form is None:
                    form = self._format(part, wanted)
                    if form is None:
                        problems.append(_other_format(part, wanted))
                        break
                    self.formats[index] = form.name
                self._wait(index, form, part)
        if problems:
            self._records[index] += len(problems)
            rows = [{"object": index, **vars(problem)} for problem in problems]
            self._insert("quarantined", pa.Table.from_pylist(rows, schema=_QUARANTINED))

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
        self._records[index] += len(part.rows)
        objects = pa.array([index], pa.int32()).take(pa.array([0] * len(part.rows), pa.int32()))
        self._waiting.setdefault(form.name, []).append(
            pa.table([objects, part.rows, part.raw], schema=_LINES)
        )
        self._waiting_bytes += part.raw.nbytes
        if self._waiting_bytes >= PART_BYTES:
            self._flush()

    def _extract(self, form: Format, lines: pa.Table) -> None:
        run(self.connection, "ingest/records")
        self.connection.register("lines", lines)
        run(self.connection, "ingest/sort_lines")
        run(self.connection, "ingest/quarantine_lines")
        self.connection.unregister("lines")
        if "interactions" in form.fills:
            run(self.connection, "ingest/extracted")
            run(self.connection, f"ingest/{form.name}/interactions")
            self._records.update(dict(run(self.connection, "ingest/further_parts").fetchall()))
            key = os.environ.get("MILLRACE_USER_HASH_KEY", "")
            run(self.connection, "ingest/stage", workload=self.workload, user_hash_key=key)
            run(self.connection, "ingest/quarantine_checked")
            run(self.connection, "ingest/drop_checked")
        if "feedback" in form.fills:
            run(self.connection, "ingest/extracted_feedback")
            run(self.connection, f"ingest/{form.name}/feedback")
            run(self.connection, "ingest/checked_feedback", workload=self.workload)
            run(self.connection, "ingest/stage_feedback")
            run(self.connection, "ingest/quarantine_feedback")

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

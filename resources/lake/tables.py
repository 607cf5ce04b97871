"""The lake's Delta tables: a commit replaces whole partitions or appends; readers see one version or the next. Delta predicates
cannot take bound parameters: `sql_literal`, the project's one quoting function, builds them. Tables stay open: a log of many
partitions is long, so later only what was committed since is read."""

import threading
from collections import Counter
from datetime import UTC, date, datetime
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import TableNotFoundError

from model_ops.files import bare
from resources.lake.lake import LakeLayout
from resources.lake.schemas import PARTITIONS, SCHEMAS

_OPENED = threading.local()
"""One cache per thread: a table that a thread reads must not change because another thread updates it."""


def opened(place: Path) -> DeltaTable | None:
    """The table at `place` at its newest version, or None where there is none."""
    known: dict[Path, tuple[DeltaTable, tuple[int, int] | None]] = _OPENED.__dict__.setdefault("tables", {})
    table, stamp = known.get(place, (None, None))
    try:
        if table is not None and stamp is not None and stamp == _stamp(place, table):
            if not _commit(place, table.version() + 1).exists():  # commits are numbered without gaps
                return table
            table.update_incremental()
        else:
            table = DeltaTable(str(place))
        known[place] = (table, _stamp(place, table))
    except (TableNotFoundError, FileNotFoundError):
        known.pop(place, None)
        return None
    return table


def _stamp(place: Path, table: DeltaTable) -> tuple[int, int] | None:
    """Identity of the newest commit's file, other after the table was created again; None if it is only in a checkpoint."""
    try:
        status = _commit(place, table.version()).stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _commit(place: Path, version: int) -> Path:
    return place / "_delta_log" / f"{version:020}.json"


def sql_literal(value: str | date | datetime | int | bool) -> str:
    """A value as an SQL literal, quotes doubled. Only for statements that cannot take bound parameters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    text = value.isoformat() if isinstance(value, date | datetime) else value
    if "\0" in text:
        raise ValueError("a NUL character cannot be part of an SQL literal")
    return "'" + text.replace("'", "''") + "'"


Rows: TypeAlias = pa.Table | pa.RecordBatchReader
"""A reader's rows are written as they come: they need not fit in memory."""

_WRITTEN = WriterProperties(compression="ZSTD", compression_level=1, max_row_group_size=1 << 16)

MANY_FILES = 32
"""Each run with rows for a partition adds a file to it; more files than this are merged."""


class Tables:
    """The Delta tables of one lake."""

    def __init__(self, lake: LakeLayout):
        self.lake = lake

    def open(self, name: str) -> DeltaTable | None:
        """The table at its newest version, or None if nothing was ever committed to it. Only its log is sure to be here."""
        self.lake.mirror.pull_log(self.lake.table(name))
        return opened(self.lake.table(name))

    def files(self, name: str, **where: tuple[str, Any]) -> list[str]:
        """Absolute paths of the newest version's Parquet files. where: such as workload=("=", "shop"), dt=("in", [...])."""
        table = self.open(name)
        if table is None:
            return []
        filters = [(column, operator, value) for column, (operator, value) in where.items()] or None
        place, prefix = self.lake.table(name), table.table_uri.removeprefix("file://")
        # delta-rs percent-encodes the table's own path, and leaves the files' names below it as they are on the disk
        files = sorted(f"{place}/{uri.removeprefix(prefix)}" for uri in table.file_uris(file_pruning_predicate=filters))
        self.lake.mirror.fetch_files(Path(file) for file in files)
        return files

    def rows_by_day(self, name: str, workload: str) -> dict[date, int]:
        """Number of rows of each of a workload's days, from the commit log alone."""
        table = self.open(name)
        if table is None:
            return {}
        counted: dict[date, int] = {}
        for part in _parts(table, "partition.workload", "partition.dt", "num_records"):
            if part["partition.workload"] == workload:
                day = part["partition.dt"]
                counted[day] = counted.get(day, 0) + part["num_records"]
        return counted

    def files_by_day(self, name: str, workload: str) -> dict[date, list[str]]:
        table = self.open(name)
        files: dict[date, list[str]] = {}
        for part in _parts(table, "partition.workload", "partition.dt", "path") if table is not None else ():
            if part["partition.workload"] == workload:
                files.setdefault(part["partition.dt"], []).append(part["path"])
        return files

    def written_at(self, name: str, workload: str) -> datetime | None:
        """When the newest of a workload's files was written, from the commit log alone; None if there is none."""
        table = self.open(name)
        parts = _parts(table, "partition.workload", "modification_time") if table is not None else []
        written = [part["modification_time"] for part in parts if part["partition.workload"] == workload]
        return datetime.fromtimestamp(max(written) / 1_000, UTC) if written else None

    def holds(self, name: str, workload: str, column: str) -> bool:
        """Whether a workload has any value in a column, from the commit log alone; True if the log has no statistics."""
        table = self.open(name)
        if table is None:
            return False
        parts = _parts(table, "partition.workload", "num_records", f"null_count.{column}")
        return any(
            part["num_records"] is None
            or part.get(f"null_count.{column}") is None
            or part[f"null_count.{column}"] < part["num_records"]
            for part in parts
            if part["partition.workload"] == workload
        )

    def compact(self, name: str, workload: str) -> int:
        """Merges the files of partitions that have more than MANY_FILES; returns the number of these partitions. Rows do not
        change; old files stay for readers that have them open."""
        table = self.open(name)
        if table is None:
            return 0
        counted: Counter[tuple[str, ...]] = Counter()
        for part in _parts(table, *(f"partition.{column}" for column in PARTITIONS[name])):
            if part["partition.workload"] == workload:
                counted[tuple(_as_text(part[f"partition.{column}"]) for column in PARTITIONS[name])] += 1
        crowded = [values for values, files in counted.items() if files > MANY_FILES]
        for values in crowded:
            chosen = [(column, "=", value) for column, value in zip(PARTITIONS[name], values, strict=True)]
            with self.lake.mirror.committing(self.lake.table(name)) as (place, settings):
                options = settings.pop("storage_options", None)
                there = table if options is None else DeltaTable(place, storage_options=options)
                there.optimize.compact(partition_filters=chosen, writer_properties=_WRITTEN, max_concurrent_tasks=1, **settings)
        return len(crowded)

    def append(self, name: str, rows: Rows) -> None:
        self._write(name, rows)

    def replace(self, name: str, rows: Rows, **where: Any) -> None:
        """Replaces, in one commit, the rows that match `where` (column=value, or column=[values]) by `rows`. Every new row must
        match `where` too: delta-rs refuses the commit otherwise."""
        clauses = []
        for column, value in where.items():
            values = value if isinstance(value, list | tuple | set) else [value]
            if not values:
                return
            clauses.append(f"{column} in ({', '.join(sql_literal(item) for item in values)})")
        self._write(name, rows, " and ".join(clauses))

    def _write(self, name: str, rows: Rows, predicate: str | None = None) -> None:
        schema = bare(SCHEMAS[name])
        batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
        batches = (part for batch in batches for part in _as_written(batch, schema))
        first = next(batches, None)
        if predicate is None and first is None:
            return
        if self.open(name) is None:
            predicate = None
        mode: dict[str, Any] = {"mode": "append"} if predicate is None else {"mode": "overwrite", "predicate": predicate}
        with self.lake.mirror.committing(self.lake.table(name)) as (place, settings):
            write_deltalake(
                place,
                pa.RecordBatchReader.from_batches(schema, chain([first] if first else [], batches)),
                partition_by=PARTITIONS[name],
                writer_properties=_WRITTEN,
                schema_mode="merge",  # a table that lacks a newer column gets it with its next commit
                **mode,
                **settings,
            )


def _parts(table: DeltaTable, *columns: str) -> list[dict[str, Any]]:
    """The commit log's entry for each file, limited to these columns, because it may have statistics of many."""
    listed = pa.table(table.get_add_actions(flatten=True))
    return listed.select([column for column in columns if column in listed.column_names]).to_pylist()


def _as_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, date) else value


def _as_written(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.RecordBatch]:
    return pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()


_KNOWN: dict[Path, tuple[tuple[Any, int], dict[str, str]]] = {}
_LOCK = threading.Lock()


def slice_stamp(tables: Tables, name: str, workload: str) -> str:
    """Number, newest time and bytes of the files with a workload's rows."""
    table = tables.open(name)
    if table is None:
        return ""
    place, version = tables.lake.table(name), (table.metadata().id, table.version())
    with _LOCK:
        if place not in _KNOWN or _KNOWN[place][0] != version:
            _KNOWN[place] = (version, _stamps(table))
        return _KNOWN[place][1].get(workload, "")


def _stamps(table: DeltaTable) -> dict[str, str]:
    listed = pa.table(table.get_add_actions(flatten=True))
    if not listed.num_rows or "partition.workload" not in listed.column_names:
        return {}
    grouped = (
        listed.select(["partition.workload", "modification_time", "size_bytes"])
        .group_by("partition.workload")
        .aggregate([("size_bytes", "count"), ("modification_time", "max"), ("size_bytes", "sum")])
    )
    return {
        row["partition.workload"]: f"{row['size_bytes_count']}-{row['modification_time_max']}-{row['size_bytes_sum']}"
        for row in grouped.to_pylist()
    }

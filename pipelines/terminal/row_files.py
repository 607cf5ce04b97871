"""Writes rows to a file (CSV, JSON, Parquet or Arrow), which appears under its name when it is complete."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.files import replaced
from pipelines.terminal.printing import Rows, print_text, schema_and_batches
from resources.catalog import CatalogError

ENDINGS = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
"""File endings that name a format."""


def format_of(path: Path, format: str | None) -> str:
    """The format of a file: as given, or by its ending. Raises CatalogError if neither says."""
    chosen = format or ENDINGS.get(path.suffix.lower())
    if chosen is not None and chosen in ENDINGS.values():
        return chosen
    raise CatalogError(f"--out {path}: the ending names no format; give {', '.join(ENDINGS)}, or --format")


def require_file_place(path: Path) -> None:
    """Raises CatalogError unless a file can be written here: a device such as /dev/null must not be replaced by a file."""
    if not path.parent.is_dir() or (path.exists() and not path.is_file()):
        raise CatalogError(f"--out {path}: give a file in an existing folder")


def write_rows_file(rows: Rows, path: Path, format: str) -> int:
    """Writes all rows and returns their number. Raises CatalogError for values that the format cannot hold."""
    require_file_place(path)
    with replaced(path) as temporary:
        if format in ("csv", "json"):
            with temporary.open("w", encoding="utf-8", newline="") as out:
                return print_text(rows, format, out)
        return _write_columns(rows, temporary, format)


def write_arrow_stream(rows: Rows) -> int:
    """Writes an Arrow IPC stream to standard output: for `| python`, not for a terminal."""
    if sys.stdout.isatty():
        raise CatalogError("--format arrow is for programs: add --out FILE.arrow, or pipe it to one")
    schema, batches = schema_and_batches(rows)
    with pa.ipc.new_stream(sys.stdout.buffer, schema) as writer:
        return _write_batches(writer, schema, batches)


def _write_columns(rows: Rows, path: Path, format: str) -> int:
    schema, batches = schema_and_batches(rows)
    try:
        with _writer(path, schema, format) as writer:
            return _write_batches(writer, schema, batches)
    except pa.ArrowNotImplementedError as error:
        raise CatalogError(f"a column cannot be written as {format} ({error}): cast it to varchar in the query") from error


@contextmanager
def _writer(path: Path, schema: pa.Schema, format: str):
    if format == "parquet":
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            yield writer
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            yield writer


def _write_batches(writer: Any, schema: pa.Schema, batches: Any) -> int:
    written = 0
    for batch in batches:
        writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
        written += batch.num_rows
    return written

"""Prints rows and lineage trees as tables, JSON or CSV. Tables escape control characters; CSV and JSON have the exact
values."""

import csv
import json
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from model_ops.files import replacement
from pipelines.terminal.tables import print_table, room_for, shorten, text_table
from resources.catalog import CatalogError, Page, QueryResult
from resources.records import escaped_json, visible

MOST_ROWS = 200
"""Most rows of a table; JSON and CSV print all rows."""
MOST_COUNTED = 100_000
"""Most rows that are counted for a table's note."""
EXPLAINED = ["explain_key", "explain_value"]
"""Columns of `explain`'s result, a drawing of many lines, which is printed as it is."""


Rows: TypeAlias = pa.Table | QueryResult | Page


def print_rows(rows: Rows, format: str, console: Console, width: int | None = None, vertical: bool = False) -> int:
    """Prints rows batch by batch, any number in JSON and CSV, and returns their number (of a table, up to MOST_COUNTED).
    vertical: one field a line in a table. Raises CatalogError for values that cannot be shown."""
    if format in ("json", "csv"):
        return print_text(rows, format, sys.stdout)
    schema, batches = schema_and_batches(rows)
    limit = rows.limit if isinstance(rows, Page) else None
    counted = _print_table(schema.names, batches, console, width, limit, vertical)
    if isinstance(rows, Page) and (rows.more or rows.number > 1):
        more = f"; --page {rows.number + 1} shows more" if rows.more else "; these are the last rows"
        console.print(f"page {rows.number}: rows from {rows.first:,}{more}", highlight=False, soft_wrap=True)
    return counted


def print_text(rows: Rows, format: str, out: TextIO) -> int:
    """Writes rows as JSON or CSV to an open file and returns their number."""
    schema, batches = schema_and_batches(rows)
    return (_print_json if format == "json" else _print_csv)(schema.names, batches, out)


def schema_and_batches(rows: Rows) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """Columns, whose names differ, and the rows batch by batch."""
    schema = pa.schema([field.with_name(name) for field, name in zip(rows.schema, _unique(rows.schema.names), strict=True)])
    return schema, rows.to_batches() if isinstance(rows, pa.Table) else rows.batches


def _values(names: list[str], batches: Iterable[pa.RecordBatch]) -> Iterator[list[Any]]:
    for batch in batches:
        try:
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
        except (ValueError, OverflowError, pa.ArrowException) as error:  # a date outside Python's range
            said = f"a value of {', '.join(names)} cannot be shown ({error}): cast the column to varchar in the query"
            raise CatalogError(said) from error


def _print_json(names: list[str], batches: Iterable[pa.RecordBatch], out: TextIO) -> int:
    written = 0
    for row in _values(names, batches):
        text = json.dumps(dict(zip(names, map(_as_json, row), strict=True)), default=str, ensure_ascii=False)
        out.write((", " if written else "[") + escaped_json(text))
        written += 1
    out.write("]\n" if written else "[]\n")
    return written


def _print_csv(names: list[str], batches: Iterable[pa.RecordBatch], out: TextIO) -> int:
    seen = out.isatty()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    written = 0
    for row in _values(names, batches):
        texts = (_as_csv(value) for value in row)
        writer.writerow([visible(value) if seen and isinstance(value, str) else value for value in texts])
        written += 1
    return written


def _as_json(value: Any) -> Any:
    """A value for JSON: bytes as text, NaN and infinities as null, other SQL types as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [_as_json(item) for item in value]
    return value if isinstance(value, str | int | bool | None) else str(value)


def _as_csv(value: Any) -> Any:
    """A value as a field: lists and structs as JSON, bytes as text."""
    if isinstance(value, dict | list):
        return json.dumps(_as_json(value), ensure_ascii=False)
    return _as_json(value) if isinstance(value, bytes) else value


def _print_table(
    names: list[str], batches: Iterable[pa.RecordBatch], console: Console, width: int | None, limit: int | None, vertical: bool
) -> int:
    shown: list[list[str]] = []
    counted = 0
    most = limit or MOST_ROWS
    for batch in batches:
        if len(shown) < most:
            for row in _values(names, [batch.slice(0, most - len(shown))]):
                shown.append([_cell(value, name) for name, value in zip(names, row, strict=True)])
        counted += batch.num_rows
        if counted > MOST_COUNTED:
            break
    if names == EXPLAINED:
        for _, plan in shown:
            console.print(Text(visible(plan, lines=True)), soft_wrap=True, highlight=False)
        return counted
    print_table(text_table(names, shown), console, width, vertical)
    if counted > most:
        of = f"more than {MOST_COUNTED:,}" if counted > MOST_COUNTED else f"{counted:,}"
        said = f"{MOST_ROWS} of {of} rows shown; --page 2 shows more, --format json or csv prints all"
        console.print(said, highlight=False, soft_wrap=True)
    return counted


def _unique(names: list[str]) -> list[str]:
    """Column names made unique: a join may have one twice."""
    unique: list[str] = []
    for name in names:
        other, number = name, 2
        while other in unique:
            other, number = f"{name}_{number}", number + 1
        unique.append(other)
    return unique


def print_lineage(edges: pa.Table, format: str, console: Console, width: int | None = None, downwards: bool = False) -> None:
    """Prints what an artefact was made from, or downwards what was made from it: a tree, or its edges."""
    if format != "table":
        print_rows(edges, format, console)
        return
    children: dict[str, list[dict[str, Any]]] = {}
    for edge in edges.to_pylist():
        if downwards:
            edge |= {"child": edge["parent"], "parent": edge["child"]}
        children.setdefault(edge["child"], []).append(edge)
    below = {edge["parent"] for group in children.values() for edge in group}
    for root in [child for child in children if child not in below]:
        tree = Tree(Text(visible(root), style="bold"))
        _grow(tree, root, children, set())
        with room_for(tree, console, width):
            console.print(tree, highlight=False)


def _grow(tree: Tree, node: str, children: dict[str, list[dict[str, Any]]], shown: set[str]) -> None:
    for edge in children.get(node, []):
        parent = edge["parent"]
        above = Text(" (above)" if parent in shown and parent in children else "", style="dim")
        branch = tree.add(Text(visible(parent)) + above)
        if parent not in shown:
            shown.add(parent)
            _grow(branch, parent, children, shown)


def _cell(value: Any, column: str) -> str:
    text = "" if value is None else str(value)
    return text if column == EXPLAINED[1] else shorten(text, column)


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
    with replacement(path) as temporary:
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

"""Prints rows and lineage trees as tables, JSON or CSV.

Tables escape control characters (pipelines/terminal/text_table.py). CSV and JSON have the exact values: JSON escapes control
characters, CSV only on a terminal.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from pipelines.terminal.text_table import print_table, room_for, shortened, text_table
from resources.catalog.catalog import Answer, CatalogError
from resources.plain_text import escaped_json, visible

MOST_ROWS = 200
"""Most rows of a table; JSON and CSV print all rows."""
MOST_COUNTED = 100_000
"""Most rows that are counted for a table's note."""
EXPLAINED = ["explain_key", "explain_value"]
"""Columns of `explain`'s result, a drawing of many lines, which is printed as it is."""


def print_rows(rows: pa.Table | Answer, format: str, console: Console, width: int | None = None) -> None:
    """Prints rows batch by batch: any number in JSON and CSV. Raises CatalogError for values that cannot be shown."""
    names = _unique(rows.schema.names)
    batches = rows.to_batches() if isinstance(rows, pa.Table) else rows.batches
    if format == "json":
        _print_json(names, batches)
    elif format == "csv":
        _print_csv(names, batches)
    else:
        _print_table(names, batches, console, width)


def _values(names: list[str], batches: Iterable[pa.RecordBatch]) -> Iterator[list[Any]]:
    """The rows as Python values."""
    for batch in batches:
        try:
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
        except (ValueError, OverflowError, pa.ArrowException) as error:  # a date outside Python's range
            raise CatalogError(
                f"a value of {', '.join(names)} cannot be shown ({error}): cast the column to varchar in the query"
            ) from error


def _print_json(names: list[str], batches: Iterable[pa.RecordBatch]) -> None:
    before = "["
    for row in _values(names, batches):
        text = json.dumps(dict(zip(names, map(_as_json, row), strict=True)), default=str, ensure_ascii=False)
        sys.stdout.write(before + escaped_json(text))
        before = ", "
    print("[]" if before == "[" else "]")


def _print_csv(names: list[str], batches: Iterable[pa.RecordBatch]) -> None:
    seen = sys.stdout.isatty()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in _values(names, batches):
        texts = (_as_csv(value) for value in row)
        writer.writerow([visible(value) if seen and isinstance(value, str) else value for value in texts])


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


def _print_table(names: list[str], batches: Iterable[pa.RecordBatch], console: Console, width: int | None) -> None:
    shown, counted = [], 0
    for batch in batches:
        if len(shown) < MOST_ROWS:
            for row in _values(names, [batch.slice(0, MOST_ROWS - len(shown))]):
                shown.append([_cell(value, name) for name, value in zip(names, row, strict=True)])
        counted += batch.num_rows
        if counted > MOST_COUNTED:
            break
    if names == EXPLAINED:
        for _, plan in shown:
            console.print(Text(visible(plan, lines=True)), soft_wrap=True, highlight=False)
        return
    print_table(text_table(names, shown), console, width)
    if counted > MOST_ROWS:
        of = f"more than {MOST_COUNTED:,}" if counted > MOST_COUNTED else f"{counted:,}"
        console.print(f"{MOST_ROWS} of {of} rows shown; --format json or csv prints all", highlight=False, soft_wrap=True)


def _unique(names: list[str]) -> list[str]:
    """Column names made unique: a join may have one twice."""
    told: list[str] = []
    for name in names:
        other, number = name, 2
        while other in told:
            other, number = f"{name}_{number}", number + 1
        told.append(other)
    return told


def print_lineage(edges: pa.Table, format: str, console: Console, width: int | None = None) -> None:
    """Prints what an artefact was made from: a tree, or its edges."""
    if format != "table":
        print_rows(edges, format, console)
        return
    children: dict[str, list[dict[str, Any]]] = {}
    for edge in edges.to_pylist():
        children.setdefault(edge["child"], []).append(edge)
    below = {edge["parent"] for edge in edges.to_pylist()}
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
    return text if column == EXPLAINED[1] else shortened(text, column)

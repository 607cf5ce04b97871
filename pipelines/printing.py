"""Rows and trees on a terminal, or as JSON and CSV for other programs."""

from __future__ import annotations

import csv
import json
import sys
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

MOST_ROWS = 200
"""Rows a table shows; JSON and CSV print all of them."""


def print_rows(rows: pa.Table, format: str, console: Console) -> None:
    """Prints a query's result."""
    rows = rows.rename_columns(_unique(rows.column_names))
    if format == "json":
        print(json.dumps(rows.to_pylist(), default=str, ensure_ascii=False))
    elif format == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(rows.column_names)
        writer.writerows(row.values() for row in rows.to_pylist())
    else:
        table = Table(*rows.column_names)
        for row in rows.slice(0, MOST_ROWS).to_pylist():
            table.add_row(*(_cell(value) for value in row.values()))
        console.print(table, markup=False)
        if rows.num_rows > MOST_ROWS:
            console.print(f"{MOST_ROWS} of {rows.num_rows:,} rows shown; --format json or csv prints all")


def _unique(names: list[str]) -> list[str]:
    """Column names told apart: a join may bring one twice."""
    seen: dict[str, int] = {}
    told = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        told.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return told


def print_lineage(edges: pa.Table, format: str, console: Console) -> None:
    """Prints what an artefact was made from: a tree, or its edges."""
    if format != "table":
        print_rows(edges, format, console)
        return
    children: dict[str, list[dict[str, Any]]] = {}
    for edge in edges.to_pylist():
        children.setdefault(edge["child"], []).append(edge)
    below = {edge["parent"] for edge in edges.to_pylist()}
    for root in [child for child in children if child not in below]:
        tree = Tree(f"[bold]{root}")
        _grow(tree, root, children, set())
        console.print(tree)


def _grow(tree: Tree, node: str, children: dict[str, list[dict[str, Any]]], shown: set[str]) -> None:
    for edge in children.get(node, []):
        parent = edge["parent"]
        branch = tree.add(parent + (" [dim](above)" if parent in shown and parent in children else ""))
        if parent not in shown:
            shown.add(parent)
            _grow(branch, parent, children, shown)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    text = "" if value is None else str(value)
    return text if len(text) <= 120 else text[:117] + "..."

"""Prints what differs between two releases: `millrace compare`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from resources.releasing.comparison import Comparison, Difference


def print_comparison(found: Comparison, console: Console) -> None:
    """Prints three tables; a table without rows is left out."""
    console.print(f"{found.workload}: release {found.release} against {found.other}", markup=False, highlight=False)
    for title, rows in (("measured", found.measurements), ("made from", found.parts), ("settings", found.settings)):
        if rows:
            console.print()
            console.print(_table(title, rows, found))
    if not (found.parts or found.settings):
        console.print("\nBoth were made from the same data, models, code and settings.")


def comparison_as_json(found: Comparison) -> str:
    return json.dumps(asdict(found), indent=2)


def _table(title: str, rows: Sequence[Difference], found: Comparison) -> Table:
    table = Table(box=None, header_style="bold")
    for name in (title, found.other, found.release):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(escape(row.what), escape(row.before or "-"), escape(row.after or "-"))
    return table

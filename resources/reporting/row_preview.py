"""A small preview of rows that shows nothing that people or models said: for Dagster's event log, which outlives the rows.

    rows_without_texts(connection, "from tutor_sft_dataset")      # [{"row_id": "9c1f...", "messages": "412 characters", ...}]

Ids of rows, names, numbers and times are shown; of texts, lists and structures only the size, and of users and sessions
nothing. An erasure finds the ids (resources/erasing/pages.py). The rows themselves are a `millrace sql` away.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import duckdb

from model_ops.wording import counted
from resources.reporting.column_statistics import short
from resources.sql_files import sql_text

ROWS = 5
NAMES = ("row_id", "interaction_id", "workload", "stage", "split", "origin", "source", "source_format", "reason", "rule",
         "status", "model", "language", "name", "tie", "suite", "task", "kind", "error_code", "finish_reason")
"""Text columns whose values are ids of rows or names: of sources, rules, models, suites."""
NEVER = ("user_hash", "session_id")
PEOPLE = {"feedback": ("source",)}
"""Columns of a table in which one of NAMES may name a person."""


def rows_without_texts(connection: duckdb.DuckDBPyConnection, query: str, hidden: Collection[str] = (),
                       count: int = ROWS) -> list[dict[str, Any]]:
    """The first rows of a query. Columns that are empty in all of them are left out; ids of rows come first. hidden: further
    columns that are not shown."""
    found = connection.sql(sql_text("catalog/preview_of_query").format(query=query), params={"rows": count})
    rows = found.to_arrow_table().to_pylist()
    shown = [name for name in found.columns if name not in (*NEVER, *hidden) and any(row[name] is not None for row in rows)]
    shown.sort(key=lambda name: NAMES.index(name) if name in NAMES else len(NAMES))
    return [{name: _shown(name, row[name]) for name in shown} for row in rows]


def _shown(name: str, value: Any) -> Any:
    if value is None or (name in NAMES and isinstance(value, str)):
        return value and short(value)
    if isinstance(value, str | bytes):
        return counted(len(value), "character" if isinstance(value, str) else "byte")
    if isinstance(value, list | dict):
        return counted(len(value), "item")
    return value if isinstance(value, bool | int | float) else str(value)

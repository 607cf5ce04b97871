"""A small preview of rows without ids and without anything that people or models said.

    rows_without_texts(connection, "from tutor_sft_dataset")  # [{"column": "messages", "row 1": "412 characters", ...}, ...]

For Dagster's event log, which may outlive the rows: after an erasure or `retention.raw_days` nothing there has to be taken
back. Names (of sources, rules, models), numbers and times are shown, of texts, lists and structures the size. `millrace sql`
and `millrace report data` show the rows themselves.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import duckdb

from model_ops.wording import counted
from resources.reporting.column_statistics import short
from resources.sql_files import sql_text

ROWS = 3
NAMES = ("workload", "stage", "split", "origin", "source", "source_format", "reason", "rule", "status", "model", "language",
         "name", "tie", "suite", "task", "kind", "error_code", "finish_reason")
"""Text columns whose values are names and not texts."""
IDENTIFYING = ("user_hash", "interaction_id", "interaction_ids", "request_id", "alias_id", "trace_id", "session_id", "row_id",
               "given_id")
PEOPLE = {"feedback": ("source",)}
"""Columns of a table in which one of NAMES may name a person."""


def rows_without_texts(
    connection: duckdb.DuckDBPyConnection, query: str, hidden: Collection[str] = ()
) -> list[dict[str, str]]:
    """The first rows of a query, a dict for each column that has a value. hidden: further columns that are not shown."""
    found = connection.sql(sql_text("catalog/queries/preview_of_query").format(query=query), params={"rows": ROWS})
    rows = found.to_arrow_table().to_pylist()
    shown = [name for name in found.columns
             if name not in (*IDENTIFYING, *hidden) and any(row[name] is not None for row in rows)]
    return [{"column": name, **{f"row {number}": _shown(name, row[name]) for number, row in enumerate(rows, 1)}}
            for name in shown]


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in NAMES and isinstance(value, str):
        return short(value, 40)
    if isinstance(value, str | bytes):
        return counted(len(value), "character" if isinstance(value, str) else "byte")
    if isinstance(value, list | dict):
        return counted(len(value), "item")
    return f"{value:.5g}" if isinstance(value, float) else str(value)

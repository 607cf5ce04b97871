"""Statistics of the columns of a relation or of Parquet files, and a preview of rows without what people or models said.

Smallest and largest values of text columns are what users wrote: they are left out unless `with_texts` is set.

The preview is for Dagster's event log, which may outlive the rows: after an erasure or `retention.raw_days` nothing there has
to be taken back. Names (of sources, rules, models), numbers and times are shown, of texts, lists and structures the size, and
no ids. `millrace sql` and `millrace report data` show the rows themselves.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import duckdb

from model_ops.jobs import counted
from resources.lake import sql_literal, sql_text

TEXTUAL = ("VARCHAR", "BLOB", "JSON")
"""Types whose values, also inside lists and structs, may be a user's text."""
MOST_CHARACTERS = 80
"""Longest text of a value."""


def column_statistics(
    connection: duckdb.DuckDBPyConnection, relation: str, with_texts: bool
) -> tuple[int, list[dict[str, str]]]:
    """The number of rows, and a row for each column: name, type, nulls (percent), distinct (approximate), least, most, mean."""
    query = sql_text("catalog/queries/described_relation").format(relation=relation)
    statistics = connection.sql(query).to_arrow_table().to_pylist()
    return statistics[0]["row_count"] if statistics else 0, [_column(row, with_texts) for row in statistics]


def files_relation(files: Sequence[Path]) -> str:
    """Parquet files together, as a relation."""
    return f"from read_parquet([{', '.join(sql_literal(str(file)) for file in files)}], union_by_name = true)"


def short(value: Any, most: int = MOST_CHARACTERS) -> str:
    """A value as text, cut to `most` characters."""
    text = "" if value is None else value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _column(row: dict[str, Any], with_texts: bool) -> dict[str, str]:
    shown = with_texts or not any(kind in row["column_type"] for kind in TEXTUAL)
    return {
        "name": row["column_name"],
        "type": short(row["column_type"], 40),
        "nulls": f"{float(row['null_percent'] or 0):.1f}",
        "distinct": f"{row['distinct_values'] or 0:,}",
        "least": short(row["least"], 28) if shown else "",
        "most": short(row["most"], 28) if shown else "",
        "mean": _number(row["mean"]),
    }


def _number(text: Any) -> str:
    try:
        return f"{float(text):,.4g}"
    except (TypeError, ValueError):
        return ""


ROWS = 3
NAMES = (
    "workload",
    "stage",
    "split",
    "origin",
    "source",
    "source_format",
    "reason",
    "rule",
    "status",
    "model",
    "language",
    "name",
    "tie",
    "suite",
    "task",
    "kind",
    "error_code",
    "finish_reason",
)
"""Text columns whose values are names and not texts."""
IDENTIFYING = (
    "user_hash",
    "interaction_id",
    "interaction_ids",
    "request_id",
    "alias_id",
    "trace_id",
    "session_id",
    "row_id",
    "given_id",
    "answer_id",
)
PEOPLE = {"feedback": ("source",)}
"""Columns of a table in which one of NAMES may name a person."""


def rows_without_texts(connection: duckdb.DuckDBPyConnection, query: str, hidden: Collection[str] = ()) -> list[dict[str, str]]:
    """The first rows of a query, a dict for each column that has a value. hidden: further columns that are not shown."""
    preview = connection.sql(sql_text("catalog/queries/preview_of_query").format(query=query), params={"rows": ROWS})
    rows = preview.to_arrow_table().to_pylist()
    shown = [
        name for name in preview.columns if name not in (*IDENTIFYING, *hidden) and any(row[name] is not None for row in rows)
    ]
    return [
        {"column": name, **{f"row {number}": _shown(name, row[name]) for number, row in enumerate(rows, 1)}} for name in shown
    ]


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

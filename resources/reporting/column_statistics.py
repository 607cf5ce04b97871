"""Statistics of the columns of a relation or of Parquet files: type, nulls, distinct values, smallest, largest, mean.

    count, columns = column_statistics(connection, "tutor_sft_dataset", with_texts=False)
    columns = column_statistics(connection, files_relation(["train.parquet", "test.parquet"]), with_texts=False)[1]

Smallest and largest values of text columns are what users wrote: they are left out unless `with_texts` is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from resources.sql_files import sql_text
from resources.tables import sql_literal

TEXTUAL = ("VARCHAR", "BLOB", "JSON")
"""Types whose values, also inside lists and structs, may be a user's text."""
MOST_CHARACTERS = 80
"""Longest text of a value."""


def column_statistics(
    connection: duckdb.DuckDBPyConnection, relation: str, with_texts: bool
) -> tuple[int, list[dict[str, str]]]:
    """The number of rows, and a row for each column: name, type, nulls (percent), distinct (approximate), least, most, mean."""
    query = sql_text("catalog/queries/described_relation").format(relation=relation)
    found = connection.sql(query).to_arrow_table().to_pylist()
    return found[0]["row_count"] if found else 0, [_column(row, with_texts) for row in found]


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
        "name": row["column_name"], "type": short(row["column_type"], 40), "nulls": f"{float(row['null_percent'] or 0):.1f}",
        "distinct": f"{row['distinct_values'] or 0:,}", "least": short(row["least"], 28) if shown else "",
        "most": short(row["most"], 28) if shown else "", "mean": _number(row["mean"]),
    }


def _number(text: Any) -> str:
    try:
        return f"{float(text):,.4g}"
    except (TypeError, ValueError):
        return ""

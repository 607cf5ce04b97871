"""The statistics of every table and dataset of a lake, traffic by day and drop reasons, as one HTML page without network.

Texts of users in previews are escaped and cut to MOST_CHARACTERS. With `previews=False` the page has no rows, and no smallest
and largest values of text columns."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb

from model_ops.files import write_text
from model_ops.jobs import counted
from resources.catalog import open_catalog
from resources.lake import SCHEMAS, LakeLayout, rows, sql_literal, sql_text
from resources.reading import CHATS_SOURCE
from resources.records import page_environment

TEMPLATES = Path(__file__).with_name("templates")
PREVIEW_ROWS = 3


@dataclass(frozen=True)
class RelationReport:
    """A table or dataset."""

    relation: str
    comment: str
    row_count: int = 0
    columns: list[dict[str, str]] | None = None
    preview: list[tuple[str, list[str]]] | None = None
    problem: str = ""
    """Why it could not be read; then the rest is empty."""


def write_data_report(lake: LakeLayout, path: Path, previews: bool = True) -> None:
    """Writes the page atomically. Raises CatalogError if the lake has no catalog, OSError if the path cannot be written."""
    with open_catalog(lake) as connection:
        tables = ["decisions_history" if name == "decisions" else name for name in SCHEMAS]
        listed = rows(connection, "catalog/queries/described_relations", tables=tables).to_pylist()
        traffic = rows(connection, "catalog/queries/traffic_by_day", chats=CHATS_SOURCE).to_pylist()
        template = page_environment(TEMPLATES).get_template("data.html.j2")
        page = template.render(
            lake=lake.root.name,
            made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            previews=previews,
            traffic=traffic,
            most=max([row["requests"] for row in traffic], default=1),
            reasons=rows(connection, "catalog/queries/drop_reasons").to_pylist(),
            described=[_described(connection, item["relation"], item["comment"] or "", previews) for item in listed],
        )
    write_text(path, page)


def _described(connection: duckdb.DuckDBPyConnection, relation: str, comment: str, previews: bool) -> RelationReport:
    try:
        count, columns = column_statistics(connection, relation, with_texts=previews)
        query = sql_text("catalog/queries/preview").format(relation=relation)
        shown = connection.sql(query, params={"rows": PREVIEW_ROWS if previews else 0}).to_arrow_table()
    except (duckdb.Error, OSError) as error:
        return RelationReport(relation, comment, problem=" ".join(str(error).split())[:200])
    cells = [(name, [short(value) for value in shown.column(name).to_pylist()]) for name in shown.column_names]
    preview = cells if shown.num_rows else None
    return RelationReport(relation, comment, count, columns, preview)


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
NAMES = {"workload", "stage", "split", "origin", "source", "source_format", "reason", "rule", "status", "model", "language"}
NAMES |= {"name", "tie", "suite", "task", "kind", "error_code", "finish_reason"}
"""Text columns whose values are names and not texts."""
IDENTIFYING = {"user_hash", "interaction_id", "interaction_ids", "request_id", "alias_id", "trace_id", "session_id"}
IDENTIFYING |= {"row_id", "given_id", "answer_id"}
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

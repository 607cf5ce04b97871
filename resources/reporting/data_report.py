"""The statistics of every table and dataset of a lake, traffic by day and drop reasons, as one HTML page without network.

Texts of users in previews are escaped and cut to MOST_CHARACTERS. With `previews=False` the page has no rows, and no smallest
and largest values of text columns.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import duckdb
from jinja2 import Environment

from model_ops.files import write_text
from resources.catalog import open_catalog
from resources.lake import SCHEMAS, LakeLayout, rows, sql_text
from resources.reading import CHATS_SOURCE
from resources.records import page_environment
from resources.reporting.statistics import column_statistics, short

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
        page = (
            _environment()
            .get_template("data.html.j2")
            .render(
                lake=lake.root.name,
                made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
                previews=previews,
                traffic=traffic,
                most=max([row["requests"] for row in traffic], default=1),
                reasons=rows(connection, "catalog/queries/drop_reasons").to_pylist(),
                described=[_described(connection, item["relation"], item["comment"] or "", previews) for item in listed],
            )
        )
    write_text(path, page)


def _environment() -> Environment:
    return page_environment(TEMPLATES)


def _described(connection: duckdb.DuckDBPyConnection, relation: str, comment: str, previews: bool) -> RelationReport:
    try:
        count, columns = column_statistics(connection, relation, with_texts=previews)
        shown = (
            connection.sql(
                sql_text("catalog/queries/preview").format(relation=relation), params={"rows": PREVIEW_ROWS}
            ).to_arrow_table()
            if previews
            else None
        )
    except (duckdb.Error, OSError) as error:
        return RelationReport(relation, comment, problem=" ".join(str(error).split())[:200])
    preview = (
        None
        if shown is None or not shown.num_rows
        else [(name, [short(value) for value in shown.column(name).to_pylist()]) for name in shown.column_names]
    )
    return RelationReport(relation, comment, count, columns, preview)

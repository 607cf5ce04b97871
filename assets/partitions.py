"""Days: one partition per UTC day of the traffic, read in single runs.

A recipe's definitions set the first day: see pipelines/graph/recipe_graph.py."""

from collections.abc import Collection, Iterator, Mapping
from datetime import date
from typing import Any

import dagster as dg

from assets.presentation import column_lineage, column_schema, described
from assets.questions import about_table, as_metadata
from resources.lake import SCHEMAS, attach_slice, sql_text, workbench
from resources.reporting import PEOPLE
from resources.workshop import Workshop

DAYS = dg.DailyPartitionsDefinition(start_date="2020-01-01", end_offset=1)
ONE_RUN = dg.BackfillPolicy.single_run()
DESCRIBED_ROWS = 10_000
"""Most rows of a table whose statistics the UI shows: those of one day, since a run may read a thousand."""


def days_of(context: dg.AssetExecutionContext) -> list[date]:
    """The days of this run's partitions."""
    return [date.fromisoformat(key) for key in context.partition_keys]


def calendar_of(context: dg.AssetExecutionContext) -> list[date]:
    """Every day from the first of this run's partitions to the last, with the days of pauses, which are no partitions."""
    chosen = days_of(context)
    return [date.fromordinal(number) for number in range(min(chosen).toordinal(), max(chosen).toordinal() + 1)]


def report_days(
    context: dg.AssetExecutionContext, workshop: Workshop, name: str, numbers: Mapping[date, Mapping[str, Any]]
) -> Iterator[dg.MaterializeResult]:
    """One materialization per day, with that day's numbers and its current row count. Days outside this run that got late rows
    are materialized too."""
    key = dg.AssetKey([workshop.workload, name])
    rows = workshop.tables.rows_by_day(name, workshop.workload)
    chosen = days_of(context)
    for day in chosen:
        metadata = {"dagster/partition_row_count": rows.get(day, 0), **numbers.get(day, {})}
        context.add_asset_metadata(metadata, asset_key=key, partition_key=day.isoformat())
    for day in sorted(set(numbers) - set(chosen)):
        metadata = {"dagster/partition_row_count": rows.get(day, 0), **numbers[day]}
        context.log_event(dg.AssetMaterialization(key, partition=day.isoformat(), metadata=metadata))
    shape = {
        "dagster/column_schema": column_schema(SCHEMAS[name], name),
        **column_lineage(f"{workshop.workload}/{name}"),
        "sql": as_metadata(about_table(name, workshop.workload)),
        **_newest_rows(workshop, name, {*chosen, *numbers} & rows.keys()),
    }
    yield dg.MaterializeResult(asset_key=key, metadata=shape)


def _newest_rows(workshop: Workshop, name: str, days: Collection[date]) -> dict[str, Any]:
    """Statistics and preview of the newest of these days, over DESCRIBED_ROWS rows at most."""
    if not days:
        return {}
    with workbench() as connection:
        attach_slice(connection, workshop.tables, name, workshop.workload, [max(days)])
        query = sql_text("tables/first_rows").format(table=name, count=DESCRIBED_ROWS)
        return {"described_day": max(days).isoformat(), **described(connection, query, PEOPLE.get(name, ()))}

"""Days: one partition per UTC day of the traffic, read in single runs.

A recipe's definitions replace the first day by its own: see pipelines.definitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

import dagster as dg

DAYS = dg.DailyPartitionsDefinition(start_date="2020-01-01", end_offset=1)
ONE_RUN = dg.BackfillPolicy.single_run()


def days_of(context: dg.AssetExecutionContext) -> list[date]:
    """The days this run is about."""
    return [date.fromisoformat(key) for key in context.partition_keys]


def report_days(
    context: dg.AssetExecutionContext, workload: str, days_by_asset: Mapping[str, Mapping[date, Mapping[str, Any]]]
) -> Iterator[dg.MaterializeResult]:
    """One materialization per asset and day, each with that day's own numbers.

    Rows that arrived late for a day outside this run are materialized there too: that day did change.
    """
    chosen = set(days_of(context))
    for name, days in days_by_asset.items():
        key = dg.AssetKey([workload, name])
        for day, numbers in days.items():
            if day in chosen:
                context.add_asset_metadata(dict(numbers), asset_key=key, partition_key=day.isoformat())
            else:
                context.log_event(dg.AssetMaterialization(key, partition=day.isoformat(), metadata=dict(numbers)))
        yield dg.MaterializeResult(asset_key=key)

"""The days of a recipe's traffic: one partition each, from its first day to its last.

The first is the recipe's own `first_day`, else the earliest in the lake's ledger, else today; the last is the recipe's own
`last_day`, else today.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg

from pipelines.contract.recipe import Recipe
from resources.lake import Lake
from resources.reading.ledger import Ledger
from resources.tables import Tables


def first_day(recipe: Recipe, place: Path) -> date:
    """Reads only the ledger; a lake that does not exist yet, or has read nothing, has today as its first day."""
    if recipe.first_day is not None:
        return recipe.first_day
    if (place / "lake.json").exists():
        with Ledger.open(Tables(Lake.open(place)), recipe.workload) as ledger:
            days = ledger.days()
        if days:
            return days[0]
    return datetime.now(UTC).date()


def daily_partitions(recipe: Recipe, place: Path) -> dg.DailyPartitionsDefinition:
    """Today is a partition of its own from its first minute on: its logs are read as they arrive."""
    start = first_day(recipe, place).isoformat()
    if recipe.last_day is None:
        return dg.DailyPartitionsDefinition(start_date=start, end_offset=1)
    end = (recipe.last_day + timedelta(days=1)).isoformat()
    return dg.DailyPartitionsDefinition(start_date=start, end_date=end)

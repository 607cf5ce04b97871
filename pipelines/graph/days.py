"""Daily partitions of a recipe's traffic, from its first day to its last.

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
    """The first day of traffic, from the recipe or the ledger; today if the lake has read nothing."""
    if recipe.first_day is not None:
        return recipe.first_day
    if (place / "lake.json").exists():
        with Ledger.open(Tables(Lake.open(place)), recipe.workload) as ledger:
            days = ledger.days()
        if days:
            return days[0]
    return datetime.now(UTC).date()


def daily_partitions(recipe: Recipe, place: Path) -> dg.DailyPartitionsDefinition:
    """The partitions. Today's partition exists from the first minute, so that logs can be read as they arrive."""
    start = first_day(recipe, place).isoformat()
    if recipe.last_day is None:
        return dg.DailyPartitionsDefinition(start_date=start, end_offset=1)
    end = (recipe.last_day + timedelta(days=1)).isoformat()
    return dg.DailyPartitionsDefinition(start_date=start, end_date=end)

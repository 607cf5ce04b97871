"""Daily partitions of a recipe's traffic, from its first day to its last.

The first is the recipe's own `first_day`, else the earliest in the lake's ledger, else today; the last is the recipe's own
`last_day`, else today. Days inside a pause of more than PAUSE are no partitions, so that a year without traffic, or one record
with a wrong clock, costs nothing: Dagster records something of every partition of a run.
"""

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path

import dagster as dg

from pipelines.contract import Recipe
from resources.lake import LakeLayout, Tables
from resources.sources import Ledger

PAUSE = timedelta(days=31)
"""The longest time without traffic whose days are partitions; also the last days before today, for schedules."""


def first_day(recipe: Recipe, place: Path) -> date:
    """The first day of traffic, from the recipe or the ledger; today if the lake has read nothing."""
    return recipe.first_day or min(_days_read(recipe, place), default=datetime.now(UTC).date())


def daily_partitions(recipe: Recipe, place: Path) -> dg.DailyPartitionsDefinition:
    """The partitions. Today's partition exists from the first minute, so that logs can be read as they arrive."""
    read, today = _days_read(recipe, place), datetime.now(UTC).date()
    start, last = recipe.first_day or min(read, default=today), recipe.last_day or today
    known = [day for day in read if start <= day <= last]
    pauses = [
        earlier + timedelta(days=ahead)
        for earlier, later in pairwise([*known, *({last - PAUSE} if known else ())])
        if later - earlier > PAUSE
        for ahead in range(1, (later - earlier).days)
    ]
    return dg.DailyPartitionsDefinition(
        start_date=start.isoformat(),
        exclusions=[datetime.combine(day, time(), UTC) for day in pauses] or None,
        **({"end_offset": 1} if recipe.last_day is None else {"end_date": (recipe.last_day + timedelta(days=1)).isoformat()}),
    )


def _days_read(recipe: Recipe, place: Path) -> list[date]:
    """The days that the lake's ledger knows, in order."""
    if not (place / "lake.json").exists():
        return []
    with Ledger.open(Tables(LakeLayout.open(place)), recipe.workload) as ledger:
        return ledger.days()

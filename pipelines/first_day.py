"""The first daily partition of a recipe: its own `first_day`, else the earliest day in the lake's ledger, else today."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

from pipelines.recipe import Recipe
from resources.lake import Lake
from resources.ledger import Ledger
from resources.tables import Tables


def first_day(recipe: Recipe, place: Path) -> date:
    """Reads only the ledger; a lake that does not exist yet, or has read nothing, has today as its first day."""
    if recipe.first_day is not None:
        return recipe.first_day
    if (place / "lake.json").exists():
        known = Ledger.load(Tables(Lake.open(place)), recipe.workload).entries.values()
        days = [day for entry in known for day in entry.days]
        if days:
            return min(days)
    return datetime.now(UTC).date()

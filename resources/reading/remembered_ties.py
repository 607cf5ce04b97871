"""Counts how feedback is tied to interactions, again only if feedback or interactions were written since.

    ties = ties_of(tables, "math-tutor", {"math-tutor", "other"})
"""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import date

from resources.artefacts.remembered import Remembered, partition_key
from resources.artefacts.source_digest import source_digest
from resources.reading.ties import Ties, tie
from resources.tables import Tables


def ties_of(tables: Tables, workload: str, workloads: Collection[str]) -> Ties:
    """Ties the feedback of some workloads (`ties.tie`). If neither table was written to since the last call for `workload`,
    returns the remembered counts and no changed day."""
    memory = Remembered(tables.lake, f"ties/{workload}", made_by=source_digest("resources/reading/ties.py"))
    if (kept := memory.get(_key(tables, workloads))) is not None:
        return Ties({of: {date.fromisoformat(day): counts for day, counts in days.items()}
                     for of, days in json.loads(kept).items()})
    found = tie(tables, workloads)
    days = {of: {day.isoformat(): counts for day, counts in of_days.items()} for of, of_days in found.days.items()}
    memory.keep({_key(tables, workloads): json.dumps(days)})
    return found


def _key(tables: Tables, workloads: Collection[str]) -> str:
    return partition_key([*tables.files("interactions"), *tables.files("feedback")], *sorted(workloads))

"""Counts of a workload's records by decision: read = kept + dropped + quarantined, checked at every count.

    counts = count_records(lake, "math-tutor", curate_version)
    counts.read, counts.kept, counts.dropped["clean: truncated"]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from resources.catalog import query
from resources.lake import Lake
from resources.manifest import Manifest
from resources.sql_files import sql_text


class CountsError(Exception):
    """Records were lost or counted twice on the way."""


@dataclass(frozen=True)
class RecordCounts:
    """Counts of records; `dropped` and `quarantined` by "stage: rule"."""

    read: int
    kept: int
    dropped: dict[str, int]
    quarantined: dict[str, int]

    @classmethod
    def of(cls, curated: Manifest) -> RecordCounts:
        """The counts in the manifest of a version of curated_interactions (metric `records`, called `fates` before)."""
        return cls(**(curated.metrics.get("records") or curated.metrics["fates"]))

    @property
    def adds_up(self) -> bool:
        return self.read == self.kept + sum(self.dropped.values()) + sum(self.quarantined.values())

    def as_rows(self) -> list[dict[str, Any]]:
        """What was dropped or quarantined and by which rule, most frequent first."""
        left = {**self.dropped, **self.quarantined}
        return [{"stage and rule": rule, "records": count} for rule, count in sorted(left.items(), key=lambda i: -i[1])]

    def check(self) -> None:
        """Raises CountsError unless read = kept + dropped + quarantined."""
        if not self.adds_up:
            dropped, quarantined = sum(self.dropped.values()), sum(self.quarantined.values())
            raise CountsError(
                f"{self.read} records were read, but {self.kept} kept + {dropped} dropped + {quarantined} quarantined "
                f"= {self.kept + dropped + quarantined}: rows were lost or counted twice"
            )


def count_records(lake: Lake, workload: str, curate_version: str) -> RecordCounts:
    """Counts a workload's records at one version of its curation, from the catalog. Raises CountsError unless they add up."""
    parameters = {"workload": workload, "curate_version": curate_version}
    rows = query(lake, sql_text("curating/record_counts/by_decision"), parameters).to_pylist()
    read = query(lake, sql_text("curating/record_counts/records_read"), {"workload": workload}).to_pylist()[0]["records"]

    def by_rule(outcome: str) -> dict[str, int]:
        return {f"{row['stage']}: {row['rule']}": row["records"] for row in rows if row["outcome"] == outcome}

    counts = RecordCounts(read, sum(by_rule("kept").values()), by_rule("dropped"), by_rule("quarantined"))
    counts.check()
    return counts

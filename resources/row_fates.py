"""What became of every record of a workload: read = kept + dropped + quarantined, checked whenever it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from resources.catalog import query
from resources.lake import Lake
from resources.manifest import Manifest
from resources.sql_files import sql_text


class CountsError(Exception):
    """Records were lost or invented on the way."""


@dataclass(frozen=True)
class RowFates:
    """Counts of records; `dropped` and `quarantined` by "stage: rule"."""

    read: int
    kept: int
    dropped: dict[str, int]
    quarantined: dict[str, int]

    @classmethod
    def of(cls, curated: Manifest) -> RowFates:
        """The fates that were counted when a version of curated_interactions was made."""
        return cls(**curated.metrics["fates"])

    @property
    def adds_up(self) -> bool:
        return self.read == self.kept + sum(self.dropped.values()) + sum(self.quarantined.values())

    def as_rows(self) -> list[dict[str, Any]]:
        """What left the traffic and why, most frequent first."""
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


def row_fates(lake: Lake, workload: str, curate_version: str) -> RowFates:
    """The fates of a workload's records at one version of its curation. Raises CountsError unless they add up."""
    parameters = {"workload": workload, "curate_version": curate_version}
    rows = query(lake, sql_text("curating/record_counts/by_decision"), parameters).to_pylist()
    read = query(lake, sql_text("curating/record_counts/records_read"), {"workload": workload}).to_pylist()[0]["records"]

    def by_rule(fate: str) -> dict[str, int]:
        return {f"{row['stage']}: {row['rule']}": row["records"] for row in rows if row["fate"] == fate}

    fates = RowFates(read, sum(by_rule("kept").values()), by_rule("dropped"), by_rule("quarantined"))
    fates.check()
    return fates

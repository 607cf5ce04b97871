"""Counts of a workload's records by decision: read = kept + dropped + quarantined. resources/catalog/enough_rows.py counts
them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from model_ops.jobs import counted
from resources.manifests import Manifest


class CountsError(Exception):
    """Records were lost or counted twice."""


@dataclass(frozen=True)
class RecordCounts:
    """Counts of records; `dropped` and `quarantined` by "stage: rule"."""

    read: int
    rows: int
    dropped: dict[str, int]
    quarantined: dict[str, int]
    elsewhere: int = 0
    """Records of the same logs that belong to other workloads; not among those read."""

    @property
    def read_text(self) -> str:
        """How many were read, and how many more the logs hold."""
        elsewhere = f" ({self.elsewhere:,} more are of other workloads)" if self.elsewhere else ""
        return f"{counted(self.read, 'record')} read{elsewhere}"

    @classmethod
    def of(cls, curated: Manifest) -> RecordCounts:
        counts = curated.metrics["records"]
        return cls(**{"rows" if name == "kept" else name: count for name, count in counts.items()})

    def as_metrics(self) -> dict[str, Any]:
        return {"kept" if name == "rows" else name: count for name, count in asdict(self).items()}

    @property
    def adds_up(self) -> bool:
        return self.read == self.rows + sum(self.dropped.values()) + sum(self.quarantined.values())

    def as_rows(self) -> list[dict[str, Any]]:
        """Dropped and quarantined records by stage and rule, most frequent first."""
        left = {**self.dropped, **self.quarantined}
        return [{"stage and rule": rule, "records": count} for rule, count in sorted(left.items(), key=lambda i: -i[1])]

    def check(self) -> None:
        """Raises CountsError unless read = kept + dropped + quarantined."""
        if not self.adds_up:
            dropped, quarantined = sum(self.dropped.values()), sum(self.quarantined.values())
            raise CountsError(
                f"{self.read} records were read, but {self.rows} kept + {dropped} dropped + {quarantined} quarantined "
                f"= {self.rows + dropped + quarantined}: rows were lost or counted twice"
            )

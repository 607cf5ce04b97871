"""What a decision is made from: traffic, drift, serving metrics, and the versions that were trained.

    seen = evidence_of(lake, recipe_facts, settings, now)

Plain numbers, so that causes, gains and costs are functions of them alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any

from resources.deciding.alarms import Episode


@dataclass(frozen=True)
class Trained:
    """What a model was trained on."""

    version: str
    rows: int
    """Cleaned rows that the grouping pass had read by then."""
    at: str


@dataclass(frozen=True)
class Evidence:
    """Counts are of one workload."""

    workload: str
    release: str = ""
    rows: int = 0
    newest_day: date | None = None
    rows_by_day: dict[date, int] = field(default_factory=dict)
    drafter: Trained | None = None
    model: Trained | None = None
    episodes: tuple[Episode, ...] = ()
    tau_released: float | None = None
    """Acceptance length of the champion's drafter in its evaluation report."""
    tau_released_low: float | None = None
    tau_served: float | None = None
    """Acceptance length of the last days by the servers' counters, with its standard error over days (None: one day or
    none)."""
    tau_served_error: float | None = None
    tau_served_days: int = 0
    served_drafts: int = 0
    requests_a_day: float | None = None
    answer_tokens_a_request: float | None = None
    tokens_per_second: float | None = None
    drafter_tau: float | None = None
    """Acceptance length of the current drafter on its own held-out answers."""
    base_then: str | None = None
    base_now: str | None = None
    """`base_now`, `base_then`: digests of the base model's files; None where it cannot change."""
    schedule_due: str = ""
    candidate: str = ""
    drafting: tuple[str, ...] = ()
    """Up to which concurrency the release's drafting pays, in words."""
    missing: tuple[str, ...] = ()
    """Models of the recipe that were never made."""
    devices: int = 1

    @property
    def new_rows_of_drafter(self) -> int:
        return max(0, self.rows - self.drafter.rows) if self.drafter else self.rows

    @property
    def new_rows_of_model(self) -> int:
        return max(0, self.rows - self.model.rows) if self.model else self.rows

    @property
    def decode_hours_a_day(self) -> float | None:
        """Device hours that a day's answers take to decode; None if traffic or speed are unknown."""
        if not (self.requests_a_day and self.answer_tokens_a_request and self.tokens_per_second):
            return None
        return self.requests_a_day * self.answer_tokens_a_request / self.tokens_per_second / 3600

    def as_record(self) -> dict[str, Any]:
        """For the table: without the counts of each day."""
        found = asdict(self)
        found.pop("rows_by_day")
        found["newest_day"] = self.newest_day.isoformat() if self.newest_day else None
        found["episodes"] = [str(each) for each in self.episodes]
        found["new_rows_of_drafter"], found["new_rows_of_model"] = self.new_rows_of_drafter, self.new_rows_of_model
        found["decode_hours_a_day"] = self.decode_hours_a_day
        return {name: value for name, value in found.items() if value not in (None, "", (), [], {})}

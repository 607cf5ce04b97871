"""One decision: a row of the table `retraining_decisions`.

    decision = Decision(workload="math-tutor", decision_id=decision_id(...), cause="new_logs", ...)
    decision.as_row()                              # as the table has it: evidence and options are JSON text
    Decision.from_row(row)

outcome says where it stands: `waiting` (without run_id: the run has not begun; with one: its release waits for an approval),
`running`, `released`, `no_better` (nothing new was served: the release is the one before, or was replaced), `refused_by_gates`,
`failed`, `cancelled`, and `not_run` where nothing was to be started.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

Action = Literal["nothing", "drafter_continued", "drafter_new", "sft_continued", "full"]
Outcome = Literal["waiting", "running", "released", "no_better", "refused_by_gates", "failed", "cancelled", "not_run"]
OPEN = ("waiting", "running")
FAILED = ("failed", "refused_by_gates")


@dataclass(frozen=True)
class Option:
    """One thing that could be done."""

    action: Action
    predicted_cost_s: float | None = None
    """Seconds on `devices`; None: unknown."""
    predicted_money: float | None = None
    predicted_gain: float | None = None
    gain_lower: float | None = None
    """Lower bound of predicted_gain: the relative rise of the acceptance length for drafters, else the fall of the held-out
    loss in nats per token."""
    why_not: str = ""
    """Why it was not chosen; "" for the chosen one."""
    gain_says: str = ""
    payback_days: float | None = None
    break_even_requests: float | None = None
    """`payback_days`, `break_even_requests`: at the lower bound of the gain."""
    stage_costs_s: dict[str, float] = field(default_factory=dict)
    """Predicted seconds by stage."""
    corrected_cost: float = 1.0
    corrected_gain: float = 1.0
    """`corrected_cost`, `corrected_gain`: ratios of real to predicted values in earlier outcomes."""


@dataclass(frozen=True)
class Decision:
    workload: str
    decision_id: str
    ts: datetime
    cause: str
    cause_text: str
    evidence: dict[str, Any]
    options: list[Option]
    action: Action
    why: str
    dry_run: bool
    run_id: str | None = None
    outcome: Outcome = "not_run"
    cost_s: float | None = None
    money: float | None = None
    gain: float | None = None
    settled_ts: datetime | None = None

    @property
    def started(self) -> bool:
        """Whether it asked for a run."""
        return self.action != "nothing" and not self.dry_run and self.outcome != "not_run"

    @property
    def is_open(self) -> bool:
        return self.outcome in OPEN

    @property
    def chosen(self) -> Option | None:
        return next((each for each in self.options if each.action == self.action), None)

    @property
    def devices(self) -> int:
        return int(self.evidence.get("devices", 1))

    @property
    def spent_hours(self) -> float:
        """Device hours: the real ones, or those predicted while it is not settled."""
        seconds = self.cost_s if self.cost_s is not None else self.chosen.predicted_cost_s if self.chosen else None
        return (seconds or 0.0) * self.devices / 3600

    @property
    def spent_money(self) -> float | None:
        return self.money if self.money is not None else self.chosen.predicted_money if self.chosen else None

    def as_row(self) -> dict[str, Any]:
        row = {each.name: getattr(self, each.name) for each in fields(self)}
        row["evidence"] = json.dumps(self.evidence, sort_keys=True, default=str)
        row["options"] = json.dumps([asdict(each) for each in self.options], sort_keys=True)
        return row

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Decision:
        """The decision of a row. An option may have further keys, of a later version: they are left out."""
        known = {each.name for each in fields(Option)}
        options = [Option(**{name: value for name, value in each.items() if name in known})
                   for each in json.loads(row["options"] or "[]")]
        return cls(**{each.name: row[each.name] for each in fields(cls) if each.name in row}
                   | {"evidence": json.loads(row["evidence"] or "{}"), "options": options})


def decision_id(workload: str, cause: str, release: str, window: str, held: str = "") -> str:
    """The same cause gives the same id, in every process and after every restart. held: what kept it from being decided."""
    record = json.dumps([workload, cause, release, window, held])
    return hashlib.sha256(record.encode()).hexdigest()[:16]

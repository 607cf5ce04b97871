"""The decisions of a workload: rows of the table `retraining_decisions`, written so that no cause is decided twice.

outcome says where it stands: `waiting` (without run_id: the run has not begun; with one: its release waits for an approval),
`running`, `released`, `no_better` (nothing new was served: the release is the one before, or was replaced), `refused_by_gates`,
`failed`, `cancelled`, and `not_run` where nothing was to be started.

A decision is first claimed: `claim` writes its row whole to <lake>/deciding/<workload>/<decision_id>.json, which only one
process can create (of a lake in a bucket: only one machine can publish). A process that is killed between the claim and the
table leaves the claim; the next look writes its row, of a lake in a bucket only if the bucket has no claim of another machine.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from resources.lake import SCHEMAS, LakeLayout, Tables, attach_slice, rows, workbench
from stores.mirror.bucket import Conflict

Action = Literal["nothing", "drafter_continued", "drafter_new", "sft_continued", "preference", "full"]
Outcome = Literal["waiting", "running", "released", "no_better", "refused_by_gates", "failed", "cancelled", "not_run"]
REQUEST = "request"
"""Cause of a decision about a person's request, and its key in the evidence."""
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
    """The relative rise of the acceptance length for drafters, else the fall of the held-out loss in nats per token. None: it
    was never measured."""
    why_not: str = ""
    """Why it was not chosen; "" for the chosen one."""
    gain_says: str = ""
    payback_days: float | None = None
    break_even_requests: float | None = None
    """`payback_days`, `break_even_requests`: at this gain; where it was never measured, if decoding took no time."""
    stage_costs_s: dict[str, float] = field(default_factory=dict)
    """Predicted seconds by stage."""


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
    def despite(self) -> tuple[str, ...]:
        """Limits that the person behind a request has overridden; () without a request."""
        return tuple(self.evidence.get(REQUEST, {}).get("despite", ()))

    def preview_sentence(self, hold: str) -> str:
        """What a dry run says. hold: what would keep it from being decided now; "" if nothing would."""
        waits = f". It would wait: {hold}" if hold else ""
        return f"dry run, nothing is kept or started. The decision would be: {self.why}{waits}"

    @property
    def is_open(self) -> bool:
        return self.outcome in OPEN

    @property
    def ended_well(self) -> bool:
        """Whether its run ended well."""
        return self.outcome in ("released", "waiting", "no_better")

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
        options = [
            Option(**{name: value for name, value in each.items() if name in known})
            for each in json.loads(row["options"] or "[]")
        ]
        return cls(
            **{each.name: row[each.name] for each in fields(cls) if each.name in row}
            | {"evidence": json.loads(row["evidence"] or "{}"), "options": options}
        )


def decision_id(workload: str, cause: str, release: str, window: str, held: str = "") -> str:
    """The same cause gives the same id, in every process and after every restart. held: what kept it from being decided."""
    record = json.dumps([workload, cause, release, window, held])
    return hashlib.sha256(record.encode()).hexdigest()[:16]


TABLE = "retraining_decisions"


class Decisions:
    """The decisions of one workload."""

    def __init__(self, lake: LakeLayout, workload: str):
        self._lake, self._workload, self._tables = lake, workload, Tables(lake)
        self._claims = lake.root / "deciding" / workload

    def seen(self) -> list[Decision]:
        """Every decision, oldest first."""
        written = self._in_table()
        return _in_order([*written, *self._unwritten(written)])

    def all(self) -> list[Decision]:
        """Every decision, oldest first; claimed ones whose row was not written yet get it now. Raises S3Error if the bucket
        of a lake is away."""
        written = self._in_table()
        for each in self._unwritten(written):
            self._publish(self._path(each))  # a store that was away may not have it, or may have another machine's by now
        missing = self._unwritten(written)
        if missing:
            self._tables.append(TABLE, _table(missing))
        return _in_order([*written, *missing])

    def record(self, decision: Decision) -> bool:
        """Claims and writes a new decision. False if it is claimed already, by this or another process. Raises S3Error if the
        bucket of a lake is away: the decision is not written then, and the next look at all decisions publishes its claim."""
        path = self._path(decision)
        if not claim(path, json.dumps(decision.as_row(), default=datetime.isoformat) + "\n") or not self._publish(path):
            return False
        self._tables.append(TABLE, _table([decision]))
        return True

    def _path(self, decision: Decision) -> Path:
        return self._claims / f"{decision.decision_id}.json"

    def _publish(self, path: Path) -> bool:
        """Of a lake in a bucket: whether the bucket has this claim now. If another machine was faster, its own takes the place
        of this one at the next look."""
        try:
            self._lake.mirror.publish(path)
        except Conflict:
            path.unlink()
            return False
        return True

    def settle(self, *decisions: Decision) -> None:
        """Replaces the rows of these decisions. A row that another process has settled meanwhile is replaced by the same."""
        for decision in decisions:
            self._tables.replace(TABLE, _table([decision]), workload=self._workload, decision_id=decision.decision_id)

    def _in_table(self) -> list[Decision]:
        with workbench() as connection:
            attach_slice(connection, self._tables, TABLE, self._workload)
            return [Decision.from_row(row) for row in rows(connection, "deciding/decisions").to_pylist()]

    def _unwritten(self, written: list[Decision]) -> list[Decision]:
        self._lake.mirror.pull_folder(self._claims)
        known, claimed = {each.decision_id for each in written}, []
        for path in sorted(self._claims.glob("*.json")):
            # a claim that cannot be read keeps its cause from being decided again, which is its purpose
            with suppress(OSError, ValueError, KeyError, TypeError):
                claimed.append(Decision.from_row(_times(json.loads(path.read_text(encoding="utf-8")))))
        return [each for each in claimed if each.decision_id not in known]


def _in_order(decisions: list[Decision]) -> list[Decision]:
    return sorted(decisions, key=lambda each: (each.ts, each.decision_id))


def _table(decisions: list[Decision]) -> pa.Table:
    return pa.Table.from_pylist([each.as_row() for each in decisions], schema=SCHEMAS[TABLE])


def _times(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: datetime.fromisoformat(value).astimezone(UTC) if value and name in ("ts", "settled_ts") else value
        for name, value in row.items()
    }


def claim(path: Path, text: str) -> bool:
    """Whether this call created the file. Raises OSError where it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    try:
        os.link(temporary, path)  # fails where it exists
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True

"""The decisions of a workload: read from the table `retraining_decisions`, and written so that no cause is decided twice.

    ledger = Decisions(lake, "math-tutor")
    ledger.seen()                        # oldest first; writes nothing
    ledger.all()                         # the same; a claim without a row gets it
    ledger.record(decision)              # False where another process has decided the same
    ledger.settle(decision)              # replaces the row of the same decision_id

A decision is first claimed: its row is written to <lake>/deciding/<workload>/<decision_id>.json, which only one process can
create (of a lake in a bucket: only one machine can publish). A process that is killed between the claim and the table leaves
the claim; the next look writes its row, of a lake in a bucket only if the bucket has no claim of another machine.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from resources.deciding.claim import claim
from resources.deciding.decision import Decision
from resources.lake import Lake
from resources.sql_files import attach_slice, rows, workbench
from resources.tables import SCHEMAS, Tables
from stores.mirror.bucket import Changed

TABLE = "retraining_decisions"


class Decisions:
    """The decisions of one workload."""

    def __init__(self, lake: Lake, workload: str):
        self._lake, self._workload, self._tables = lake, workload, Tables(lake)
        self._claims = lake.root / "deciding" / workload

    def seen(self) -> list[Decision]:
        """Every decision, oldest first."""
        found = self._in_table()
        return _in_order([*found, *self._unwritten(found)])

    def all(self) -> list[Decision]:
        """Every decision, oldest first; claimed ones whose row was not written yet get it now. Raises S3Error if the bucket
        of a lake is away."""
        found = self._in_table()
        for each in self._unwritten(found):
            self._publish(self._path(each))  # a store that was away may not have it, or may have another machine's by now
        missing = self._unwritten(found)
        if missing:
            self._tables.append(TABLE, _table(missing))
        return _in_order([*found, *missing])

    def record(self, decision: Decision) -> bool:
        """Claims and writes a new decision. False if it is claimed already, by this or another process. Raises S3Error if the
        bucket of a lake is away: the decision is not written then, and the next look at all decisions publishes its claim."""
        path = self._path(decision)
        if not claim(path, json.dumps(decision.as_row(), default=_as_text) + "\n") or not self._publish(path):
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
        except Changed:
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
        known = {each.decision_id for each in written}
        return [each for each in self._claimed() if each.decision_id not in known]

    def _claimed(self) -> list[Decision]:
        self._lake.mirror.pull_folder(self._claims)
        found = []
        for path in sorted(self._claims.glob("*.json")):
            try:
                found.append(Decision.from_row(_times(json.loads(path.read_text(encoding="utf-8")))))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # a claim that cannot be read keeps its cause from being decided again, which is its purpose
        return found


def _in_order(decisions: list[Decision]) -> list[Decision]:
    return sorted(decisions, key=lambda each: (each.ts, each.decision_id))


def _table(decisions: list[Decision]) -> pa.Table:
    return pa.Table.from_pylist([each.as_row() for each in decisions], schema=SCHEMAS[TABLE])


def _as_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _times(row: dict[str, Any]) -> dict[str, Any]:
    return {name: datetime.fromisoformat(value).astimezone(UTC) if value and name in ("ts", "settled_ts") else value
            for name, value in row.items()}

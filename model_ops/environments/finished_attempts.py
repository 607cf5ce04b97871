"""Attempts that are over, kept as they end: a killed run that continues resets no environment of them a second time.

    finished = FinishedAttempts(work / "attempts.jsonl")
    finished.begin(["0:3:0", "0:3:1"])           # the attempts that are asked for now
    finished.add("0:3:1", rollouts)
    finished.found["0:3:1"]

Attempts that were asked for before are kept elsewhere by then (model_ops/rollouts/rollout_log.py), so `begin` forgets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from model_ops.files import JsonLines
from model_ops.rollouts import Rollout, read_rollout, written_rollout


class FinishedAttempts:
    """found: the rollouts of each attempt, by its name. path: None keeps nothing on the disk."""

    def __init__(self, path: Path | None = None):
        self._path, self._lines = path, JsonLines(path) if path is not None else None
        records = self._lines.records if self._lines is not None else []
        self.found = {record["name"]: [read_rollout(each) for each in record["rollouts"]] for record in records}

    def begin(self, names: Sequence[str]) -> None:
        """Forgets attempts unless one of them has such a name."""
        if self._path is None or not self.found.keys() & set(names):
            self.found = {}
            if self._path is not None:
                self._path.unlink(missing_ok=True)

    def add(self, name: str, rollouts: Sequence[Rollout]) -> None:
        if self._lines is not None:
            self._lines.add({"name": name, "rollouts": [written_rollout(each) for each in rollouts]})
        self.found[name] = list(rollouts)

"""Attempts that are over, kept as they end: a killed run that continues resets no environment of them a second time.

finished = FinishedAttempts(work / "attempts.jsonl")
finished.add("0:3:1", rollouts)
"0:3:1" in finished, finished["0:3:1"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from model_ops.files import JsonLines
from model_ops.graders import Grade
from model_ops.rollouts import Rollout


class FinishedAttempts:
    """The file of one training. Rollouts by the name of their attempt."""

    def __init__(self, path: Path):
        self._lines = JsonLines(path)
        self._found = {record["name"]: [_rollout(each) for each in record["rollouts"]] for record in self._lines.records}

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __getitem__(self, name: str) -> list[Rollout]:
        return self._found[name]

    def add(self, name: str, rollouts: Sequence[Rollout]) -> None:
        self._lines.add({"name": name, "rollouts": [_record(each) for each in rollouts]})
        self._found[name] = list(rollouts)


def _record(rollout: Rollout) -> dict[str, Any]:
    given = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(rollout).items()}
    return {**given, "grade": asdict(rollout.grade)}


def _rollout(record: dict[str, Any]) -> Rollout:
    dtypes = {"prompt": np.int32, "tokens": np.int32, "sampled": bool, "log_probs": np.float32, "versions": np.int64}
    arrays = {name: np.array(record[name], dtype) for name, dtype in dtypes.items()}
    return Rollout(**{**record, **arrays, "grade": Grade(**record["grade"])})

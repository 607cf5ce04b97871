"""Rollouts kept as they are made, so that a killed training continues with the same ones and pays nobody twice.

    log = RolloutLog(work / "rollouts.jsonl")
    log.add(round=0, prompts=[3, 1], groups=[[Rollout, ...], [Rollout, ...]])
    log.chunks[0].groups()                # the rollouts, read from the file
    log.add_outcomes({17: Outcome(learnt=True, gap=2e-5)})

One line for each call, flushed to the disk. A line that a kill cut short is removed. Memory holds a few numbers of each
rollout; tokens stay in the file. Arrays are written as base64, which keeps every bit.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model_ops.graders import Grade
from model_ops.rollouts.rollout import Rollout

KINDS = {"prompt": np.int32, "tokens": np.int32, "sampled": bool, "log_probs": np.float32, "versions": np.int32}
"""Arrays of a rollout, as they are written."""


class Outcome(NamedTuple):
    """What became of a rollout."""

    learnt: bool
    gap: float | None
    """Mean |log-probability by the model less that of the sampler| of its tokens, in the step that learnt it."""


@dataclass(frozen=True)
class KeptRollout:
    """The numbers of a rollout."""

    version: int
    """Of its first sampled token."""
    grade: Grade
    tokens: int
    """Sampled ones."""
    ended: bool
    attempt: int


@dataclass
class RolloutChunk:
    """The groups of prompts that were asked together."""

    round: int
    prompts: list[int]
    """Places of the prompts among all."""
    first: int
    """Number of its first rollout among all of the log."""
    kept: list[list[KeptRollout]]
    """By prompt."""
    path: Path
    begin: int
    """Place of its line in the file, in bytes."""

    def groups(self) -> list[list[Rollout]]:
        """The rollouts, by prompt."""
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return _groups(json.loads(file.readline()))


class RolloutLog:
    """The file of one training."""

    def __init__(self, path: Path):
        self.path, self.chunks, self.outcomes = path, list[RolloutChunk](), dict[int, Outcome]()
        self._rollouts = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        begin = 0
        with path.open("a+b") as file:
            file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                record = json.loads(line)
                self._take(record, begin)
                begin += len(line)
        os.truncate(path, begin)

    def of_round(self, round: int) -> list[RolloutChunk]:
        return [chunk for chunk in self.chunks if chunk.round == round]

    def add(self, round: int, prompts: list[int], groups: Sequence[Sequence[Rollout]]) -> None:
        """Keeps a chunk."""
        written = [[written_rollout(rollout) for rollout in of_prompt] for of_prompt in groups]
        self._add({"round": round, "prompts": prompts, "groups": written})

    def add_outcomes(self, outcomes: Mapping[int, Outcome]) -> None:
        """Keeps what became of rollouts, by their numbers; of one that is known already, the newest stays."""
        self._add({"outcomes": {str(number): list(outcome) for number, outcome in outcomes.items()}})

    def _add(self, record: dict[str, Any]) -> None:
        line = json.dumps(record).encode() + b"\n"
        with self.path.open("ab") as file:
            begin = file.tell()
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._take(record, begin)

    def _take(self, record: dict[str, Any], begin: int) -> None:
        if "outcomes" in record:
            self.outcomes |= {int(number): Outcome(*outcome) for number, outcome in record["outcomes"].items()}
            return
        kept = [[_kept(rollout) for rollout in of_prompt] for of_prompt in _groups(record)]
        self.chunks.append(RolloutChunk(record["round"], record["prompts"], self._rollouts, kept, self.path, begin))
        self._rollouts += sum(map(len, kept))


def _kept(rollout: Rollout) -> KeptRollout:
    sampled = rollout.versions[rollout.sampled]
    version = int(sampled[0]) if len(sampled) else -1
    return KeptRollout(version, rollout.grade, int(rollout.sampled.sum()), rollout.ended, rollout.attempt)


def written_rollout(rollout: Rollout) -> dict[str, Any]:
    """A rollout as JSON."""
    arrays = {name: b64encode(getattr(rollout, name).astype(kind).tobytes()).decode() for name, kind in KINDS.items()}
    return {**arrays, "ended": rollout.ended, "grade": asdict(rollout.grade), "attempt": rollout.attempt}


def _groups(record: dict[str, Any]) -> list[list[Rollout]]:
    return [[read_rollout(rollout) for rollout in of_prompt] for of_prompt in record["groups"]]


def read_rollout(written: dict[str, Any]) -> Rollout:
    """The rollout that `written_rollout` wrote."""
    arrays = {name: np.frombuffer(b64decode(written[name]), kind) for name, kind in KINDS.items()}
    return Rollout(**{**written, **arrays, "grade": Grade(**written["grade"])})

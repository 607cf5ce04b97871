"""Rollouts kept as they are made, so that a killed training continues with the same ones and pays nobody twice.

    log = RolloutLog(work / "rollouts.jsonl")
    log.add(round=0, prompts=[3, 1], groups=[[Rollout, ...], [Rollout, ...]])
    log.chunks[0].groups()                # the rollouts, read from the file
    log.add_outcomes({17: RolloutOutcome(learnt=True, gap=2e-5)})

One line for each call, flushed to the disk. Memory holds a few numbers of each rollout; tokens stay in the file. Arrays are
written as base64, which keeps every bit.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from model_ops.files import JsonLines
from model_ops.graders import Grade
from model_ops.jobs import ModelError
from model_ops.rollouts.rollout import Rollout

KINDS = {"prompt": np.int32, "tokens": np.int32, "sampled": bool, "log_probs": np.float32, "versions": np.int32}
"""Arrays of a rollout, as they are written."""


class RolloutOutcome(NamedTuple):
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
    lines: JsonLines
    place: int
    """Of its line in the file."""

    def groups(self) -> list[list[Rollout]]:
        """The rollouts, by prompt."""
        return _groups(self.lines.at(self.place))


class RolloutLog:
    """The file of one training, to which several threads may add. Adding raises ModelError where the disk is full."""

    def __init__(self, path: Path):
        self._lines, self.chunks, self.outcomes = JsonLines(path), list[RolloutChunk](), dict[int, RolloutOutcome]()
        self._rollouts, self._lock = 0, Lock()
        for place, record in self._lines.read():
            self._take(record, place)

    def of_round(self, round: int) -> list[RolloutChunk]:
        return [chunk for chunk in self.chunks if chunk.round == round]

    def add(self, round: int, prompts: list[int], groups: Sequence[Sequence[Rollout]]) -> None:
        """Keeps a chunk."""
        written = [[written_rollout(rollout) for rollout in of_prompt] for of_prompt in groups]
        self._add({"round": round, "prompts": prompts, "groups": written})

    def add_outcomes(self, outcomes: Mapping[int, RolloutOutcome]) -> None:
        """Keeps what became of rollouts, by their numbers; of one that is known already, the newest stays."""
        self._add({"outcomes": {str(number): list(outcome) for number, outcome in outcomes.items()}})

    def _add(self, record: dict[str, Any]) -> None:
        with self._lock:
            try:
                place = self._lines.add(record)
            except OSError as error:
                raise ModelError(
                    f"{self._lines.path} takes no more rollouts ({error.strerror}): free disk space, and the same command "
                    "continues"
                ) from error
            self._take(record, place)

    def _take(self, record: dict[str, Any], place: int) -> None:
        if "outcomes" in record:
            self.outcomes |= {int(number): RolloutOutcome(*outcome) for number, outcome in record["outcomes"].items()}
            return
        kept = [[_kept(rollout) for rollout in of_prompt] for of_prompt in _groups(record)]
        self.chunks.append(RolloutChunk(record["round"], record["prompts"], self._rollouts, kept, self._lines, place))
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

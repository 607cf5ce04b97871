"""Attempts that are over, kept as they end: a killed run that continues resets no environment of them a second time.

    finished = FinishedAttempts(work / "attempts.jsonl")
    finished.groups(prompts, names, answers, failures, play)       # `play` calls finished.add for each attempt

Once attempts are asked for, those of earlier calls are in the log of rollouts (model_ops/rollouts/rollout_log.py), and are
forgotten here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from model_ops.files import JsonLines
from model_ops.graders import Failures
from model_ops.rollouts import Rollout, SampledPrompt, read_rollout, written_rollout

MOST_ACTIVE = 256
"""Attempts at a time: each is a process, and an open file of this one."""


class FinishedAttempts:
    """found: the rollouts of each attempt, by its name. path: None keeps nothing on the disk."""

    def __init__(self, path: Path | None = None):
        self._path, self._lines = path, JsonLines(path) if path is not None else None
        kept = self._lines.read() if self._lines is not None else ()
        self.found = {record["name"]: [read_rollout(each) for each in record["rollouts"]] for _, record in kept}

    def groups(
        self,
        prompts: Sequence[SampledPrompt],
        names: Sequence[str],
        answers: int,
        failures: Failures,
        play: Callable[[Sequence[tuple[str, SampledPrompt, int]]], None],
    ) -> list[list[Rollout]]:
        """The rollouts of each prompt, of which `play` makes those that are not kept: of (name, prompt, number) of attempts,
        at most MOST_ACTIVE at a time. Raises ModelError where most attempts have failed."""
        asked = [
            [(f"{name}:{number}", prompt, number) for number in range(answers)]
            for prompt, name in zip(prompts, names, strict=True)
        ]
        self._begin([name for group in asked for name, _, _ in group])
        left = [each for group in asked for each in group if each[0] not in self.found]
        for begin in range(0, len(left), MOST_ACTIVE):
            play(left[begin : begin + MOST_ACTIVE])
        found = [[self.found[name] for name, _, _ in group] for group in asked]
        for prompt, group in zip(prompts, found, strict=True):
            failures.count(prompt.row_id, [attempt[-1].grade for attempt in group])
        return [[rollout for attempt in group for rollout in attempt] for group in found]

    def _begin(self, names: Sequence[str]) -> None:
        """Forgets attempts unless one of them has such a name."""
        if self._path is None or not self.found.keys() & set(names):
            self.found = {}
            if self._path is not None:
                self._path.unlink(missing_ok=True)

    def add(self, name: str, rollouts: Sequence[Rollout]) -> None:
        if self._lines is not None:
            self._lines.add({"name": name, "rollouts": [written_rollout(each) for each in rollouts]})
        self.found[name] = list(rollouts)

"""What makers of attempts in an environment share: each attempt is kept as it ends, so a kill resets no environment twice."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from model_ops.answers import Engine, Rollout, RolloutLog, SampledPrompt
from model_ops.environments.environment_processes import EnvironmentProcesses
from model_ops.graders import Failures
from model_ops.jobs import Progress

MOST_ACTIVE = 256
"""Attempts at a time: each is a process, and an open file of this one."""
Attempt = tuple[str, SampledPrompt, int]
"""Its key in the log, its prompt, and its number among the attempts at the prompt."""


class AttemptMaker(ABC):
    """A RolloutMaker. log: keeps the attempts; None keeps them in memory for one call. answers: attempts at each prompt."""

    def __init__(self, processes: EnvironmentProcesses, log: RolloutLog | None, progress: Progress, answers: int):
        self.answers, self._processes, self._log, self._progress = answers, processes, log, progress
        self._ended: dict[str, list[Rollout]] = {}
        self.failures = Failures(f"the {processes.name}")

    def rollouts(
        self, prompts: Sequence[SampledPrompt], names: Sequence[str], engine: Engine, seed: int
    ) -> list[list[Rollout]]:
        """As RolloutMaker.rollouts. An attempt has a rollout for each context that does not go on from another. Raises
        ModelError where most attempts have failed."""
        asked = [
            [(f"{name}:{number}", prompt, number) for number in range(self.answers)]
            for prompt, name in zip(prompts, names, strict=True)
        ]
        self._ended = {
            key: rollouts
            for group in asked
            for key, _, _ in group
            if self._log is not None and (rollouts := self._log.attempt(key)) is not None
        }
        left = [attempt for group in asked for attempt in group if attempt[0] not in self._ended]
        for begin in range(0, len(left), MOST_ACTIVE):
            self._play(left[begin : begin + MOST_ACTIVE], engine, seed)
        groups = [[self._ended[key] for key, _, _ in group] for group in asked]
        for prompt, attempts in zip(prompts, groups, strict=True):
            self.failures.count(prompt.row_id, [attempt[-1].grade for attempt in attempts])
        return [[rollout for attempt in attempts for rollout in attempt] for attempts in groups]

    @abstractmethod
    def _play(self, attempts: Sequence[Attempt], engine: Engine, seed: int) -> None:
        """Makes attempts, and calls `_keep` for each as it ends."""

    def _keep(self, key: str, rollouts: list[Rollout]) -> None:
        if self._log is not None:
            self._log.add_attempts({key: rollouts})
        self._ended[key] = rollouts

"""Warns of rounds that teach nothing, and of a policy whose entropy falls or grows too far."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from model_ops.answers import Rollout
from model_ops.jobs import Progress

SILENT_ROUNDS, MOSTLY = 5, 0.9
"""A warning after so many rounds in a row in which at least this share of groups taught nothing."""
LEAST_ENTROPY = 0.05
"""Nats by token. A model of 10 million weights at 0.04 had 92 % equal groups and learnt nothing ever after."""
GREATEST_GROWTH = 3.0


def teach_nothing(taught: int, groups: int) -> bool:
    """Whether a round of so many groups, of which `taught` taught something, counts as one that taught nothing."""
    return groups - taught >= MOSTLY * groups


class RolloutWatch:
    """cuts_are_masked: whether cut answers are left out. Its state is part of the plan's."""

    def __init__(self, progress: Progress, cuts_are_masked: bool):
        self._progress, self._cuts_are_masked = progress, cuts_are_masked
        self._silent, self._first_entropy, self._has_warned = 0, math.nan, False

    def state(self) -> dict[str, Any]:
        first = None if math.isnan(self._first_entropy) else self._first_entropy
        return {"silent": self._silent, "first_entropy": first, "told": self._has_warned}

    def resume(self, state: dict[str, Any]) -> None:
        self._silent, self._has_warned = state["silent"], state["told"]
        self._first_entropy = math.nan if state["first_entropy"] is None else state["first_entropy"]

    def see(self, groups: Sequence[Sequence[Rollout]], taught: int) -> None:
        """Takes a round. taught: groups from which something is learnt."""
        each = [rollout for group in groups for rollout in group]
        self._see_silence(each, taught, len(groups))
        self._see_entropy(each)

    def _see_silence(self, each: Sequence[Rollout], taught: int, groups: int) -> None:
        self._silent = self._silent + 1 if teach_nothing(taught, groups) else 0
        if self._silent and self._silent % SILENT_ROUNDS == 0:
            cut = sum(not rollout.ended for rollout in each) / max(1, len(each))
            why = (
                f"{cut:z.0%} of answers are cut: raise max_new_tokens, or set overlong: penalty"
                if cut > MOSTLY and self._cuts_are_masked
                else "the answers to a prompt are all as good: choose prompts that the model solves sometimes, raise answers "
                "or temperature, or end the training"
            )
            taught_last = f"{taught} of {groups} prompts in the last"
            self._warn(f"{self._silent} rounds in a row taught almost nothing ({taught_last}); {why}")

    def _see_entropy(self, each: Sequence[Rollout]) -> None:
        logs = np.concatenate([np.zeros(0, np.float32), *(rollout.log_probs[rollout.sampled] for rollout in each)])
        logs = logs[np.isfinite(logs)]
        if self._has_warned or not len(logs):
            return
        entropy = -float(logs.mean(dtype=np.float64))
        if math.isnan(self._first_entropy):
            self._first_entropy = entropy
        if entropy < LEAST_ENTROPY:
            self._has_warned = True
            self._warn(
                f"the entropy fell to {entropy:.3f} nats by token, below {LEAST_ENTROPY:g}: the answers to a prompt become one "
                "and the same, and nothing more is learnt; lower learning_rate, or raise clip_high or temperature"
            )
        elif entropy > GREATEST_GROWTH * max(self._first_entropy, LEAST_ENTROPY):
            self._has_warned = True
            self._warn(
                f"the entropy grew from {self._first_entropy:.3f} to {entropy:.3f} nats by token: answers become noise; lower "
                "learning_rate, or set kl above 0"
            )

    def _warn(self, said: str) -> None:
        self._progress.event("warning", message=f"rft: {said}")

"""Policy for bad steps: loss or gradient is not finite (`on_bad_step`), or above median + 10 x 1.4826 MAD (median absolute
deviation) of the last 100 steps, a spike (`on_spike`). All processes decide alike, and the history is part of the
checkpoint."""

import math
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

from model_ops.jobs import ModelError, Progress
from model_ops.parallel import World
from model_ops.training.settings import TrainingSettings

SPIKE_HISTORY, SPIKE_WINDOW, SPIKE_DEVIATIONS = 20, 100, 10.0
"""Number of earlier steps that are needed to detect a spike; that it is measured against; how far above the median it is."""
LEAST_DEVIATION = {"loss": 0.02, "grad_norm": 0.2}
"""Least deviation as a share of the median, so that small changes after very even steps are no spikes."""
SKIPS_IN_A_ROW = 10
"""This many skipped steps in a row stop the run, because it has diverged."""
SPIKE, GRADIENT_NOT_FINITE, LOSS_NOT_FINITE = 1, 2, 3


class Recovery:
    """The policy of one run, with the history of its losses and gradient norms."""

    def __init__(self, settings: TrainingSettings, world: World, progress: Progress, state: dict[str, Any] | None = None):
        self.settings, self.world, self.progress = settings, world, progress
        state = state or {}
        self._seen = {name: deque(state.get(name, []), maxlen=SPIKE_WINDOW) for name in LEAST_DEVIATION}
        self.skipped: int = state.get("skipped", 0)
        self._in_a_row: int = state.get("in_a_row", 0)

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint: last losses and gradient norms, and the number of skipped steps."""
        return {
            **{name: list(values) for name, values in self._seen.items()},
            "skipped": self.skipped,
            "in_a_row": self._in_a_row,
        }

    def takes(self, name: str, loss: float, grad_norm: float, rows: Callable[[], list[str]]) -> bool:
        """Whether to apply the step's update. rows: returns the ids of this process's suspicious rows. Raises ModelError with
        the step's `name` and the rows if the policy is to stop."""
        numbers = {"loss": loss, "grad_norm": grad_norm}
        spikes = self._spikes(numbers)
        finding = (
            LOSS_NOT_FINITE
            if not math.isfinite(loss)
            else GRADIENT_NOT_FINITE
            if not math.isfinite(grad_norm)
            else SPIKE
            if spikes
            else 0
        )
        finding = int(self.world.greatest([finding])[0])
        if finding < GRADIENT_NOT_FINITE:
            for key, value in numbers.items():
                self._seen[key].append(value)
        policy = self.settings.on_spike if finding == SPIKE else self.settings.on_bad_step
        if finding == 0 or policy == "ignore":
            self._in_a_row = 0
            return True
        ids = dict.fromkeys(row for of_process in self.world.gather(rows()) for row in of_process)
        where = f"on rows {some(list(ids))}"
        if finding == SPIKE:
            bounds = " and ".join(
                f"{key} {numbers[key]:.4g} is above {bound:.4g}, its usual range" for key, bound in spikes.items()
            )
            problem = f"{name}: {bounds or 'a spike'}, {where}"
        else:
            kind = "loss" if finding == LOSS_NOT_FINITE else "gradient"
            problem = f"{name}: the {kind} is not a finite number {where}"
        if policy == "stop":
            raise ModelError(
                f"{problem}; lower learning_rate, check these rows, or set "
                f"{'on_spike' if finding == SPIKE else 'on_bad_step'}: skip"
            )
        if policy == "warn":
            self._in_a_row = 0
            self._warn(problem)
            return True
        self.skipped += 1
        self._in_a_row += 1
        if self._in_a_row == SKIPS_IN_A_ROW:
            raise ModelError(f"{problem}; it is the {SKIPS_IN_A_ROW}th step in a row to be skipped: lower learning_rate")
        self._warn(f"{problem}; the step was skipped")
        return False

    def _spikes(self, numbers: dict[str, float]) -> dict[str, float]:
        """The numbers that are spikes -> the bounds that they exceed."""
        if self.settings.on_spike == "ignore":
            return {}
        bounds = {}
        for key, value in numbers.items():
            seen = self._seen[key]
            if len(seen) < SPIKE_HISTORY:
                continue
            middle = median(seen)
            deviation = max(1.4826 * median(abs(one - middle) for one in seen), LEAST_DEVIATION[key] * abs(middle))
            bound = middle + SPIKE_DEVIATIONS * deviation
            if value > bound:
                bounds[key] = bound
        return bounds

    def _warn(self, message: str) -> None:
        if self.world.leads:
            self.progress.event("warning", message=message)


def some(row_ids: list[str]) -> str:
    """The first five row ids, and the number of further ones."""
    shown = ", ".join(row_ids[:5])
    return shown if len(row_ids) <= 5 else f"{shown} and {len(row_ids) - 5} more"

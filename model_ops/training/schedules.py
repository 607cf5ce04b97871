"""The steps of a run and their learning rates: a pure function of the step, so that checkpoints need not store them.

    schedule = RunSchedule(settings, steps)     # with a rule (early_end.py), the run may end before its last step
    for index in schedule.steps_from(first):
        rate = schedule.learning_rate(index)    # step 0 is the first, schedule.last - 1 the last

All schedules begin with a linear warm-up over `warmup_share` of the steps. The floor is final_learning_rate_share:

- cosine: half a cosine wave down to the floor.
- wsd: flat, then down to the floor over the last `decay_share` of the steps (arXiv 2404.06395), as
  1 - sqrt(share of the decay) (arXiv 2405.18392), which falls fast at first.
- linear: a line down to the floor.
- constant: flat.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any

from model_ops.training.early_end import EarlyEnd
from model_ops.training.settings import TrainingSettings


@dataclass(frozen=True)
class RunSchedule:
    """How many steps a run has, and the learning rate of each. `settings` are resolved."""

    settings: TrainingSettings
    steps: int
    rule: EarlyEnd | None = None

    @property
    def last(self) -> int:
        """Steps that the run has: `steps`, or fewer once the rule has ended it."""
        ended = self.rule.ended if self.rule else None
        return self.steps if ended is None else ended + self._fall(ended)

    @property
    def says(self) -> str:
        """Why the run ended early, or did not; "" without a rule."""
        return self.rule.says if self.rule else ""

    def steps_from(self, first: int) -> Iterator[int]:
        """Indices of the steps that are left."""
        return takewhile(lambda index: index < self.last, count(first))

    def learning_rate(self, index: int) -> float:
        """The learning rate of a step: the schedule's, or that of the fall before an early end."""
        ended = self.rule.ended if self.rule else None
        if ended is None:
            return learning_rate_at(index, self.steps, self.settings)
        return cooled_learning_rate(index, ended, self.last, self.steps, self.settings)

    def after_step(self, done: int, tokens: float, validation: Mapping[str, float] | None) -> dict[str, float]:
        """Lets the rule weigh whether the run goes on after `done` steps. Returns its numbers for the log."""
        return self.rule.after_step(done, self.steps, self._fall(done), tokens, validation) if self.rule else {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint remembers: the rule's state."""
        return {"early_end": self.rule.state()} if self.rule else {}

    def _fall(self, done: int) -> int:
        """Steps of the fall of the learning rate after `done` steps: `decay_share` of both together."""
        share = self.settings.decay_share
        if self.settings.schedule == "constant":
            return 0
        return math.ceil(round(done * share / (1 - share), 6)) if share < 1 else self.steps


def learning_rate_at(step: int, steps: int, settings: TrainingSettings) -> float:
    """The learning rate of step `step` of `steps`. `settings` are resolved."""
    warmup = round(settings.warmup_share * steps)
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    floor = settings.final_learning_rate_share
    match settings.schedule:
        case "cosine":
            factor = floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * _share(step, warmup, steps)))
        case "linear":
            factor = floor + (1 - floor) * (1 - _share(step, warmup, steps))
        case "wsd":
            decay_begins = max(warmup, steps - max(1, round(settings.decay_share * steps)))
            # the step before the decay has share 0, so every step of the decay is below the peak
            factor = floor + (1 - floor) * (1 - math.sqrt(_share(step, decay_begins - 1, steps)))
        case "constant":
            factor = 1.0
    return settings.learning_rate * factor


def cooled_learning_rate(step: int, falls_from: int, last: int, steps: int, settings: TrainingSettings) -> float:
    """The learning rate of step `step` of a run that ends after `last` of `steps` steps: from that of the schedule in the step
    before `falls_from` to its floor in step last - 1, as that of wsd does. `settings` are resolved."""
    begins = learning_rate_at(falls_from - 1, steps, settings)
    floor = min(begins, settings.final_learning_rate_share * settings.learning_rate)
    return floor + (begins - floor) * (1 - math.sqrt(_share(step, falls_from - 1, last)))


def _share(step: int, begins: int, steps: int) -> float:
    """Progress from step `begins` to the last one: 0 up to `begins`, 1 at the last step."""
    return max(0.0, (step - begins) / max(1, steps - 1 - begins))

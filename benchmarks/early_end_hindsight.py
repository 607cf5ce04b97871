"""Where a training should have ended, known from the whole one: the value of a drafter less the device time of its training.

    ended = replayed(log, settings, rule, every)            # log: lines of metrics.jsonl of a training of all its steps
    ends = possible_ends(log, settings, rule, every, lift)
    hindsight(ends, ended.last, worth, seconds_a_step)      # Hindsight(ended_at=150, best_end=175, ...), with its regret
    last_paying(log, ends, every, settings.decay_share, worth, seconds_a_step)

A drafter that accepts m tokens a forward pass saves, beside no drafter, DecodingWorth.saved_s(1, m) device seconds
(model_ops.training.learning_curve, with m = 1 for no drafter). A training that ends early has the first steps of the whole one,
bit for bit, and then a fall of its learning rate. The fall lifts its acceptance length; the whole log does not say how far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from model_ops.training.early_end import EarlyEnd
from model_ops.training.early_end_settings import EarlyEndOfDrafter
from model_ops.training.learning_curve import DecodingWorth
from model_ops.training.schedules import RunSchedule
from model_ops.training.settings import TrainingSettings

TAU = EarlyEndOfDrafter.MEASURES
NOTHING_PAYS = {"decode_hours_per_day": 1e-9, "serves_days": 1e-3, "trained_tokens_per_second": 1e-3}
"""Numbers by which no interval pays, however the acceptance length rises."""
Line = Mapping[str, Any]


@dataclass(frozen=True)
class End:
    """decided: after how many steps the learning rate begins to fall. steps: of the training. tau: expected
    acceptance length."""

    decided: int
    steps: int
    tau: float


def replayed(log: Sequence[Line], settings: TrainingSettings, rule: EarlyEndOfDrafter, every: int) -> RunSchedule:
    """The schedule after the measurements of a training of all its steps; `last` says after how many it ends."""
    schedule = RunSchedule(settings, len(log), EarlyEnd(rule, every, devices=1))
    for line in log:
        schedule.after_step(line["step"], line["tokens"], line if TAU in line else None)
        if schedule.last < len(log):
            break
    return schedule


def possible_ends(
    log: Sequence[Line],
    settings: TrainingSettings,
    rule: EarlyEndOfDrafter,
    every: int,
    lift: Callable[[int], float] = lambda decided: 0.0,
) -> list[End]:
    """Every end that the rule may choose, the whole training as the last one. lift: added to the measurement then."""
    found, share = [], rule.least_share
    while True:
        costly = rule.model_copy(update={**NOTHING_PAYS, "least_share": share})
        schedule = replayed(log, settings, costly, every)
        decided = schedule.rule.ended
        if decided is None:
            return [*found, End(len(log), len(log), log[-1][TAU])]
        found.append(End(decided, schedule.last, log[decided - 1][TAU] + lift(decided)))
        share = (decided + 0.5) / len(log)


@dataclass(frozen=True)
class Hindsight:
    """ended_at, best_end: steps of the trainings. net_s, best_net_s: what their drafters save, less their training, in device
    seconds."""

    ended_at: int
    best_end: int
    net_s: float
    best_net_s: float

    @property
    def regret_s(self) -> float:
        return self.best_net_s - self.net_s

    @property
    def regret_share(self) -> float | None:
        """Of the best net value; None where no end is worth its training."""
        return self.regret_s / self.best_net_s if self.best_net_s > 0 else None


def hindsight(ends: Sequence[End], ended_at: int, worth: DecodingWorth, seconds_a_step: float) -> Hindsight:
    """Compares the end of a training, in steps, with the best of all possible ends. Raises ValueError if it is none of them."""
    values = {end.steps: net_s(end, worth, seconds_a_step) for end in ends}
    if ended_at not in values:
        raise ValueError(f"a training of {ended_at} steps is none of the possible ends {sorted(values)}")
    best = max(values, key=lambda steps: values[steps])
    return Hindsight(ended_at, best, values[ended_at], values[best])


def last_paying(
    log: Sequence[Line], ends: Sequence[End], every: int, decay_share: float, worth: DecodingWorth, seconds_a_step: float
) -> int:
    """Steps at the end of the last interval that paid: by the rule's formula, with the gain that was measured in place of the
    predicted one. 0 where none paid after the first possible end."""
    measured = [(line["step"], line[TAU]) for line in log if TAU in line and line["step"] >= ends[0].decided]
    costs_s = every / (1 - decay_share) * seconds_a_step
    return max((step for (_, before), (step, after) in pairwise(measured) if worth.saved_s(before, after) > costs_s), default=0)


def net_s(end: End, worth: DecodingWorth, seconds_a_step: float) -> float:
    """Device seconds that the drafter saves beside none, less those of its training."""
    return worth.saved_s(1.0, end.tau) - end.steps * seconds_a_step


def lift_between(measured: Mapping[int, float]) -> Callable[[int], float]:
    """The lift after any number of steps, on lines between the measured ones and constant before and after them."""
    places = sorted(measured)

    def lift(decided: int) -> float:
        before = max((place for place in places if place <= decided), default=places[0])
        after = min((place for place in places if place >= decided), default=places[-1])
        if before == after or not before <= decided <= after:
            return measured[before if decided >= before else after]
        return measured[before] + (measured[after] - measured[before]) * (decided - before) / (after - before)

    return lift

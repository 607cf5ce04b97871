"""Ends a training early: weighs each further interval after an evaluation, and lets the learning rate fall before the end.

    early = EarlyEnd(settings, stop, steps, every, devices, state)      # stop: None or not enabled: every step is trained
    for index in early.steps_from(first):
        rate = early.learning_rate(index)
        ...
        log.write({..., **early.after_step(done, tokens, validation)})
    early.says                                                          # in words, for the artefact's metrics

model_ops.training.marginal_gain has the rule. When an interval does not pay, the learning rate falls from where it is to its
floor over `decay_share` of the steps that the training then has, as a schedule of that length would end; without this fall the
weights would be those of a schedule that was cut off. An interval costs its share of this fall as well. The result is the last
weights.

The rule reads no clock: the cost of a token is known before the training begins (`trained_tokens_per_second`). Points, decision
and the numbers that it was made from are part of the checkpoint, so a continued run decides as an uninterrupted one, also where
the numbers that it would look up now are others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

from model_ops.training.early_end_settings import EarlyEndOfDrafter, EarlyEndOfModel, EarlyEndSettings
from model_ops.training.learning_curve import Point
from model_ops.training.marginal_gain import FEWEST, DecodingWorth, Further, LossWorth, Worth, further
from model_ops.training.schedules import cooled_learning_rate, learning_rate_at
from model_ops.training.settings import TrainingSettings
from model_ops.wording import counted, duration


class EarlyEnd:
    """The decision of one run. every: steps between evaluations. devices: of the run, for device seconds. state: what `state()`
    returned, from a checkpoint. last: number of steps that the run has, fewer once the rule has ended it."""

    def __init__(self, settings: TrainingSettings, stop: EarlyEndSettings | None, steps: int, every: int, devices: int,
                 state: Mapping[str, Any] | None = None, held_out: bool = True):
        self.settings, self.steps, self.every, self.devices = settings, steps, every, devices
        self.last, self.says = steps, ""
        self._stop = stop if stop is not None and stop.enabled else None
        self._tokens, self._points, self._falls_from = 0.0, list[Point](), None
        if self._stop is None:
            return
        if state:
            self._stop, self.devices = self._stop.model_copy(update=state["looked_up"]), state["devices"]
            self._tokens, self._points = state["tokens"], [(at, value) for at, value in state["points"]]
            self.last, self._falls_from, self.says = state["last"], state["falls_from"], state["says"]
        self._worth, unknown = _worth(self._stop)
        if not held_out:
            unknown = "there are no held-out rows to evaluate on"
        if unknown:
            self._worth = None
            self.says = f"trained to its end: {unknown}"
        elif not self.says:
            self.says = (f"trained to its end: nothing was weighed, which takes {FEWEST} evaluations that measure "
                         f"{self._stop.MEASURES} before the learning rate falls")

    @property
    def is_on(self) -> bool:
        return self._stop is not None

    def steps_from(self, first: int) -> Iterator[int]:
        """Indices of the steps that are left, as long as the rule does not end the run."""
        index = first
        while index < self.last:
            yield index
            index += 1

    def learning_rate(self, index: int) -> float:
        """The learning rate of a step: the schedule's, or that of the fall before an early end."""
        if self._falls_from is None:
            return learning_rate_at(index, self.steps, self.settings)
        return cooled_learning_rate(index, self._falls_from, self.last, self.steps, self.settings)

    def after_step(self, done: int, tokens: float, validation: Mapping[str, float] | None) -> dict[str, float]:
        """Counts a step's tokens; after an evaluation, weighs a further interval. Returns numbers for the log."""
        self._tokens += tokens
        if self._stop is None or self._falls_from is not None or not validation:
            return {}
        value = validation.get(self._stop.MEASURES)
        if value is None or not math.isfinite(value):
            return {}
        self._points.append((self._tokens, value))
        falls_for = self._fall(done)
        if self._worth is None or done < self._stop.least_share * self.steps or done + falls_for >= self.steps:
            return {}
        more = self._tokens / done * self.every
        seconds = more / self._stop.trained_tokens_per_second * self.devices * (done + falls_for) / done
        found = further(self._points, more, seconds, self._worth, self._stop.RISES)
        if found is None:
            return {}
        self.says = "trained to its end: no interval that was weighed costs more than it may save"
        if not found.pays:
            self.last, self._falls_from = done + falls_for, done
            self.says = self._sentence(done, found)
        return {"further_gain": found.gain, "further_gain_high": found.gain_high, "further_saves_s": round(found.saves_s, 3),
                "further_costs_s": round(found.costs_s, 3)}

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON values."""
        looked_up = {name: getattr(self._stop, name) for name in sorted(self._stop.LOOKED_UP)} if self._stop else {}
        return {"looked_up": looked_up, "devices": self.devices, "tokens": self._tokens,
                "points": [list(each) for each in self._points], "last": self.last,
                "falls_from": self._falls_from, "says": self.says}

    def _fall(self, done: int) -> int:
        """Steps of the fall of the learning rate after `done` steps: `decay_share` of both together."""
        share = self.settings.decay_share
        if self.settings.schedule == "constant":
            return 0
        return math.ceil(round(done * share / (1 - share), 6)) if share < 1 else self.steps

    def _sentence(self, done: int, found: Further) -> str:
        steps = counted(self.every, "further step")
        falls = f", {self.last - done} of them while the learning rate falls" if self.last > done else ""
        ended = (f"ended after {self.last:,} of {self.steps:,} steps{falls}: {steps} would cost {duration(found.costs_s)} of a "
                 "device")
        worth = duration(found.saves_s) if found.saves_s >= 0.5 else "nothing"
        high = found.gain_high
        if isinstance(self._worth, DecodingWorth):
            if high < 5e-5:
                return f"{ended}, and not raise the expected acceptance length of {found.now:.3f}"
            return (f"{ended}, and raise the expected acceptance length of {found.now:.3f} by at most {high:.4f}, "
                    f"which saves {worth} in {self._worth.days:g} days")
        if high < 5e-6:
            return f"{ended}, and not lower the held-out loss of {found.now:.4f} nats a token"
        return (f"{ended}, and lower the held-out loss of {found.now:.4f} by at most {high:.5f} nats a token, which is worth "
                f"{worth} at {cast(LossWorth, self._worth).nats_an_hour:g} nats a device hour")


def _worth(stop: EarlyEndSettings) -> tuple[Worth | None, str]:
    """What a gain is worth; None, and why nothing can be weighed."""
    if stop.trained_tokens_per_second is None:
        return None, ("what an interval costs is unknown before this stage was trained once; the next training knows it, or "
                      "set early_end.trained_tokens_per_second")
    if isinstance(stop, EarlyEndOfModel):
        return LossWorth(stop.nats_per_device_hour), ""
    if isinstance(stop, EarlyEndOfDrafter) and stop.decode_hours_per_day is not None:
        return DecodingWorth(stop.decode_hours_per_day, stop.serves_days or 30.0, stop.decode_hours_at_tau), ""
    return None, ("what decoding a day's answers takes is unknown: no requests in the logs, no measured tokens/s, or a release "
                  "that does not draft with its drafter; set early_end.decode_hours_per_day")

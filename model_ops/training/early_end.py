"""The rule that ends a training early: weighs each further interval after an evaluation.

    rule = EarlyEnd(settings.early_end, every, devices, state)           # state: what `state()` returned, from a checkpoint
    schedule = RunSchedule(settings, steps, rule)                        # schedules.py: asks the rule after each step
    rule.ended                                                           # steps after which it ended the run, or None
    rule.says                                                            # in words, for the artefact's metrics

model_ops.training.learning_curve has the rule. When an interval does not pay, the learning rate falls from where it is to its
floor over `decay_share` of the steps that the training then has, as a schedule of that length would end; without this fall the
weights would be those of a schedule that was cut off. An interval costs its share of this fall as well. The result is the last
weights.

The rule reads no clock: the cost of a token is known before the training begins (`trained_tokens_per_second`). Points, decision
and the numbers that it was made from are part of the checkpoint, so a continued run decides as an uninterrupted one, also where
the numbers that it would look up now are others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from model_ops.jobs import counted, duration
from model_ops.training.early_end_settings import EarlyEndOfDrafter, EarlyEndOfModel, EarlyEndSettings
from model_ops.training.learning_curve import FEWEST, DecodingWorth, GainValue, LossWorth, NextInterval, Point, further


class EarlyEnd:
    """The rule of one run. every: steps between evaluations. devices: of the run, for device seconds."""

    def __init__(
        self, stop: EarlyEndSettings, every: int, devices: int, state: Mapping[str, Any] | None = None, held_out: bool = True
    ):
        self._stop, self._every, self._devices = stop, every, devices
        self._tokens, self._points = 0.0, list[Point]()
        self.ended: int | None = None
        """Steps after which the learning rate falls to the run's end; None as long as every interval may pay."""
        self.says = ""
        if state:
            self._stop, self._devices = stop.model_copy(update=state["looked_up"]), state["devices"]
            self._tokens, self._points = state["tokens"], [(at, value) for at, value in state["points"]]
            self.ended, self.says = state["ended"], state["says"]
        self._worth, unknown = _worth(self._stop)
        if not held_out:
            unknown = "there are no held-out rows to evaluate on"
        if unknown:
            self._worth = None
            self.says = f"trained to its end: {unknown}"
        elif not self.says:
            self.says = (
                f"trained to its end: nothing was weighed, which takes {FEWEST} evaluations that measure "
                f"{self._stop.MEASURES} before the learning rate falls"
            )

    def after_step(
        self, done: int, steps: int, falls_for: int, tokens: float, validation: Mapping[str, float] | None
    ) -> dict[str, float]:
        """Counts the tokens of step `done` of `steps`; after an evaluation, weighs a further interval. Returns numbers for the
        log. falls_for: steps of the fall of the learning rate if the run ended now."""
        self._tokens += tokens
        if self.ended is not None or not validation:
            return {}
        value = validation.get(self._stop.MEASURES)
        if value is None or not math.isfinite(value):
            return {}
        self._points.append((self._tokens, value))
        if self._worth is None or done < self._stop.least_share * steps or done + falls_for >= steps:
            return {}
        more = self._tokens / done * self._every
        seconds = more / self._stop.trained_tokens_per_second * self._devices * (done + falls_for) / done
        found = further(self._points, more, seconds, self._worth, self._stop.RISES)
        if found is None:
            return {}
        self.says = "trained to its end: no interval that was weighed costs more than it may save"
        if not found.pays:
            self.ended, self.says = done, self._sentence(done + falls_for, steps, falls_for, found)
        return {
            "further_gain": found.gain,
            "further_gain_high": found.gain_high,
            "further_saves_s": round(found.saves_s, 3),
            "further_costs_s": round(found.costs_s, 3),
        }

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON values."""
        return {
            "looked_up": {name: getattr(self._stop, name) for name in sorted(self._stop.LOOKED_UP)},
            "devices": self._devices,
            "tokens": self._tokens,
            "points": [list(each) for each in self._points],
            "ended": self.ended,
            "says": self.says,
        }

    def _sentence(self, last: int, steps: int, falls_for: int, found: NextInterval) -> str:
        falls = f", {falls_for} of them while the learning rate falls" if falls_for else ""
        ended = (
            f"ended after {last:,} of {steps:,} steps{falls}: {counted(self._every, 'further step')} would cost "
            f"{duration(found.costs_s)} of a device"
        )
        worth = duration(found.saves_s) if found.saves_s >= 0.5 else "nothing"
        high = found.gain_high
        if isinstance(self._worth, DecodingWorth):
            if high < 5e-5:
                return f"{ended}, and not raise the expected acceptance length of {found.now:.3f}"
            return (
                f"{ended}, and raise the expected acceptance length of {found.now:.3f} by at most {high:.4f}, "
                f"which saves {worth} in {self._worth.days:g} days"
            )
        nats = f"nats a {cast(EarlyEndOfModel, self._stop).COUNTED}"
        if high < 5e-6:
            return f"{ended}, and not lower the held-out loss of {found.now:.4f} {nats}"
        return (
            f"{ended}, and lower the held-out loss of {found.now:.4f} by at most {high:.5f} {nats}, which is worth "
            f"{worth} at {cast(LossWorth, self._worth).nats_an_hour:g} nats a device hour"
        )


def _worth(stop: EarlyEndSettings) -> tuple[GainValue | None, str]:
    """What a gain is worth; None, and why nothing can be weighed."""
    if stop.trained_tokens_per_second is None:
        return None, (
            "what an interval costs is unknown before this stage was trained once; the next training knows it, or "
            "set early_end.trained_tokens_per_second"
        )
    if isinstance(stop, EarlyEndOfModel):
        return LossWorth(stop.nats_per_device_hour), ""
    if isinstance(stop, EarlyEndOfDrafter) and stop.decode_hours_per_day is not None:
        return DecodingWorth(stop.decode_hours_per_day, stop.serves_days or 30.0, stop.decode_hours_at_tau), ""
    return None, (
        "what decoding a day's answers takes is unknown: no requests in the logs, no measured tokens/s, or a release "
        "that does not draft with its drafter; set early_end.decode_hours_per_day"
    )

"""Whether a further interval of a training is worth its device time: a pure function of the learning curve so far.

    found = further(points, more_tokens=65_536, costs_s=900, worth=DecodingWorth(40, 14, at_tau=2.1), rises=True)
    found.pays, found.gain, found.gain_high, found.saves_s, found.costs_s

With the measurement m after n tokens, the slope b of the last WINDOW of the points on log2(n) by least squares, and its upper
bound b+ (one-sided 95 %), a further interval of d tokens is predicted to bring

    gain = b log2((n + d) / n),      at most gain+ = b+ log2((n + d) / n)

- A drafter: decoding a day's answers takes H device hours at the acceptance length tau_H, so H tau_H / m at m: time is
  inversely proportional to the acceptance length, if K and the cost of a draft stay. In D days the gain saves

    saves = 3600 D (H tau_H / m) (1 - m / (m + gain+))    device seconds; without tau_H, H is taken as the hours at m

- A model: saves = 3600 gain+ / r device seconds, where a person says that a device hour has to bring r nats per token.

An interval pays if saves > costs. The upper bound counts, so noise does not end a training; one that no longer gains ends
because its upper bound falls with each interval. While a curve is linear in log2(n), gain falls with n and costs do not, so the
first interval that does not pay is followed by none that does. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from model_ops.training.learning_curve import Point, rise_a_doubling

WINDOW = 0.75
"""Share of the points, the last ones, that are fitted: the first steps learn what says little of later ones."""
FEWEST = 4
"""Points that are fitted at least."""


class Worth(Protocol):
    """The value of a better measurement."""

    def saved_s(self, now: float, then: float) -> float:
        """Device seconds that a measurement of `then` instead of `now` is worth."""


@dataclass(frozen=True)
class DecodingWorth:
    """Worth of a drafter's acceptance length in decoding hours."""

    hours_a_day: float
    """Device hours that decoding takes at the acceptance length at_tau (None: at the one that is measured now)."""
    days: float
    """Days that the drafter serves."""
    at_tau: float | None = None

    def saved_s(self, now: float, then: float) -> float:
        hours = self.hours_a_day * (self.at_tau / now if self.at_tau else 1.0)
        return 3600 * self.days * hours * (1 - now / then)


@dataclass(frozen=True)
class LossWorth:
    """Worth of a lower held-out loss, in nats per token and device hour."""

    nats_an_hour: float

    def saved_s(self, now: float, then: float) -> float:
        return 3600 * (now - then) / self.nats_an_hour


@dataclass(frozen=True)
class Further:
    """A further interval. gain, gain_high: predicted and at most, in the measurement's unit, above 0 for a better one. now: the
    newest measurement. saves_s: worth of gain_high, at least 0, and costs_s, in device seconds."""

    now: float
    gain: float
    gain_high: float
    saves_s: float
    costs_s: float

    @property
    def pays(self) -> bool:
        return self.saves_s > self.costs_s


def further(points: Sequence[Point], more_tokens: float, costs_s: float, worth: Worth, rises: bool) -> Further | None:
    """Weighs an interval of `more_tokens` after the last of `points`, (tokens so far, measurement) in order.

    rises: whether a higher measurement is better. None with fewer than FEWEST points, which say too little.
    """
    if len(points) < FEWEST:
        return None
    rise = rise_a_doubling(points[-max(FEWEST, math.ceil(WINDOW * len(points))):])
    if rise is None:
        return None
    tokens, now = points[-1]
    doublings = math.log2((tokens + more_tokens) / tokens)
    gain, high = (rise.value, rise.high) if rises else (-rise.value, -rise.low)
    most = math.inf if rises else now  # no loss falls below 0
    gain, high = min(gain * doublings, most), min(high * doublings, most)
    saves = worth.saved_s(now, now + high if rises else now - high) if high > 0 else 0.0
    return Further(now, gain, high, saves, costs_s)

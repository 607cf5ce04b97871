"""How much a measurement rises with each doubling of the tokens, and whether a further interval of training pays.

    found = rise_a_doubling([(4_096, 1.42), (8_192, 1.55), (16_384, 1.66)])      # Rise(value=0.12, error=0.003, n=3)
    found.low, found.high

    found = further(points, more_tokens=65_536, costs_s=900, worth=DecodingWorth(40, 14, at_tau=2.1), rises=True)
    found.pays, found.gain, found.gain_high, found.saves_s, found.costs_s

    upper_quantile(2)           # 2.920, Student's t: a one-sided 95 % interval of a mean of three ends so many errors away

Measurements on held-out rows are nearly linear in the logarithm of the tokens over the last doublings of a training. Beyond the
measured range it is an extrapolation. Imports no torch.

With the measurement m after n tokens, the slope b of the last WINDOW of the points on log2(n) by least squares, and its upper
bound b+ (one-sided 95 %), a further interval of d tokens is predicted to bring

    gain = b log2((n + d) / n),      at most gain+ = b+ log2((n + d) / n)

- A drafter: decoding a day's answers takes H device hours at the acceptance length tau_H, so H tau_H / m at m: time is
  inversely proportional to the acceptance length, if K and the cost of a draft stay. In D days the gain saves

    saves = 3600 D (H tau_H / m) (1 - m / (m + gain+))    device seconds; without tau_H, H is taken as the hours at m

- A model: saves = 3600 gain+ / r device seconds, where a person says that a device hour has to bring r nats per token.

An interval pays if saves > costs. The upper bound counts, so noise does not end a training; one that no longer gains ends
because its upper bound falls with each interval. While a curve is linear in log2(n), gain falls with n and costs do not, so the
first interval that does not pay is followed by none that does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Point = tuple[float, float]
"""(tokens or rows so far, measurement)."""


@dataclass(frozen=True)
class Rise:
    """Rise a doubling, in the measurement's unit."""

    value: float
    error: float
    """Standard error."""
    n: int
    """Points."""

    @property
    def low(self) -> float:
        """Lower end of the one-sided 95 % interval of the fit, which takes points for independent and the curve for linear."""
        return self.value - self._half

    @property
    def high(self) -> float:
        """Upper end of the one-sided 95 % interval of the fit."""
        return self.value + self._half

    @property
    def _half(self) -> float:
        return upper_quantile(self.n - 2) * self.error


def rise_a_doubling(points: Sequence[Point]) -> Rise | None:
    """Least squares of the measurement on log2 of what it was trained on; None with fewer than three different places."""
    if len({at for at, _ in points}) < 3:
        return None
    xs, ys = [math.log2(at) for at, _ in points], [y for _, y in points]
    n, mean_x, mean_y = len(xs), sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    left = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    return Rise(slope, math.sqrt(left / (n - 2) / spread), n)


QUANTILES = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""95 % quantiles with 1 to 10 degrees of freedom."""


def upper_quantile(degrees: int) -> float:
    """The 95 % quantile; of more than 10 degrees of freedom that of 10, which is larger by at most 10 %. Fewer than 1 count as
    1."""
    return QUANTILES[min(len(QUANTILES), max(1, degrees)) - 1]


WINDOW = 0.75
"""Share of the points, the last ones, that are fitted: the first steps learn what says little of later ones."""
FEWEST = 4
"""Points that are fitted at least."""


class GainValue(Protocol):
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
class NextInterval:
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


def further(points: Sequence[Point], more_tokens: float, costs_s: float, worth: GainValue, rises: bool) -> NextInterval | None:
    """Weighs an interval of `more_tokens` after the last of `points`, (tokens so far, measurement) in order.

    rises: whether a higher measurement is better. None with fewer than FEWEST points, which say too little.
    """
    if len(points) < FEWEST:
        return None
    rise = rise_a_doubling(points[-max(FEWEST, math.ceil(WINDOW * len(points))) :])
    if rise is None:
        return None
    tokens, now = points[-1]
    doublings = math.log2((tokens + more_tokens) / tokens)
    gain, high = (rise.value, rise.high) if rises else (-rise.value, -rise.low)
    most = math.inf if rises else now  # no loss falls below 0
    gain, high = min(gain * doublings, most), min(high * doublings, most)
    saves = worth.saved_s(now, now + high if rises else now - high) if high > 0 else 0.0
    return NextInterval(now, gain, high, saves, costs_s)

"""Whether the served acceptance length (tau = 1 + accepted tokens / drafts) falls: by complete hours, without the profile of
the week, on a CUSUM chart. The reference is the first full window of the release; its mean by hour of the week (of the day, in
less than two weeks) is the profile; a residual leaves its own week out. Residuals' variance is a constant plus a part that
falls with the number of drafts. What an hour shares with the one before is taken out first (a residual chart of a first-order
autoregression, Alwan and Roberts 1988). The chart adds up log likelihood ratios of a fall against none (Page 1954); its bound
comes from the series' own history."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import numpy as np
from jaxtyping import Bool, Float

from model_ops.jobs import counted
from resources.drifting.settings import DriftSettings

HOURS, WEEK = 24, 168
LEAST_DAYS = 7
"""Days with served hours that a reference needs."""
LEAST_VARIANCE = 1e-8
"""Variance of tau at which a series counts as constant."""
MOST_AN_HOUR = 1.0
"""Standard deviations of an hour that the chart is made for: with more, one odd hour would decide, and a history of weeks
cannot say how odd the oddest hour of years is. Sums over many hours it can tell about."""
MOST_CORRELATED = 0.9
"""Correlation of neighbouring hours that is taken out at most: with more, a fall would be taken out as well."""


@dataclass(frozen=True)
class HourlyDrafts:
    """Drafts of one hour (UTC), and how many drafted tokens were accepted."""

    hour: datetime
    drafts: int
    accepted_tokens: int

    @property
    def tau(self) -> float:
        return 1 + self.accepted_tokens / self.drafts


@dataclass(frozen=True)
class DayOfAcceptance:
    """A day of the chart."""

    day: date
    sum: float
    """The chart's largest value of the day."""
    alarm: bool
    tau: float
    """Acceptance length of all drafts of the day."""


@dataclass(frozen=True)
class Acceptance:
    """The chart of a release."""

    days: list[DayOfAcceptance] = field(default_factory=list)
    bound: float | None = None
    start: date | None = None
    end: date | None = None
    problem: str = ""
    """Why there is no chart."""


def acceptance(
    hours: Sequence[HourlyDrafts], settings: DriftSettings, rate: float, now: datetime, name: str = ""
) -> Acceptance:
    """The chart of a release. rate: false alarms a day. name: seeds the bootstrap."""
    hours = [each for each in hours if each.hour + timedelta(hours=1) <= now]
    if not hours:
        return Acceptance(problem="no served hour of the release has drafts")
    start = hours[0].hour.date()
    end = start + timedelta(settings.reference_days - 1)
    inside = [each for each in hours if each.hour.date() <= end]
    after = [each for each in hours if each.hour.date() > end]
    days = len({each.hour.date() for each in inside})
    if now.date() <= end:
        return Acceptance(
            problem=f"the release has served for {counted((now.date() - start).days, 'day')} of the "
            f"{settings.reference_days} of its reference window"
        )
    if days < LEAST_DAYS:
        return Acceptance(problem=f"the reference window has {counted(days, 'day')} with drafts, fewer than {LEAST_DAYS}")
    profile = _Profile(inside, by_week=settings.reference_days >= 2 * 7)
    tau_fall = settings.acceptance_drop * profile.level
    history = _by_hour(profile.evidence(inside, tau_fall, own=True))
    seed = int.from_bytes(hashlib.sha256(f"{name}/{start}".encode()).digest()[:8], "big")
    bound = bound_for(history, HOURS, rate, np.random.default_rng(seed))
    sums, alarms = chart(np.array(list(profile.evidence(after, tau_fall).values())), bound)
    return Acceptance(list(_by_day(after, sums, alarms)), bound, start, end)


def _by_day(hours: Sequence[HourlyDrafts], sums: np.ndarray, alarms: np.ndarray):
    for day in sorted({each.hour.date() for each in hours}):
        places = [place for place, each in enumerate(hours) if each.hour.date() == day]
        drafts = sum(hours[place].drafts for place in places)
        accepted = sum(hours[place].accepted_tokens for place in places)
        yield DayOfAcceptance(day, float(sums[places].max()), bool(alarms[places].any()), 1 + accepted / drafts)


class _Profile:
    """Mean tau of each hour of the week or day, the variance around it, and what neighbouring hours share of it."""

    def __init__(self, hours: Sequence[HourlyDrafts], by_week: bool):
        self.by_week = by_week
        self.level = float(np.average([each.tau for each in hours], weights=[each.drafts for each in hours]))
        self._sums = np.zeros(WEEK if by_week else HOURS)
        self._counts = np.zeros_like(self._sums)
        for each in hours:
            self._sums[self._slot(each)] += each.tau
            self._counts[self._slot(each)] += 1
        residuals = np.array([self.residual(each, own=True) for each in hours])
        self._constant, self._by_draft = _variance(residuals, np.array([each.drafts for each in hours]))
        self._correlation = self._correlation_of(hours)

    def _slot(self, hour: HourlyDrafts) -> int:
        return hour.hour.hour + (HOURS * hour.hour.weekday() if self.by_week else 0)

    def residual(self, hour: HourlyDrafts, own: bool = False) -> float:
        """tau minus the profile. own: the hour is one of the profile's, which then leaves it out."""
        slot = self._slot(hour)
        count, total = self._counts[slot] - own, self._sums[slot] - own * hour.tau
        return hour.tau - (total / count if count else self.level)

    def evidence(self, hours: Sequence[HourlyDrafts], fall: float, own: bool = False) -> dict[datetime, float]:
        """By hour, the log likelihood ratio of a fall of tau against none: of the fall asked for, but of MOST_AN_HOUR at most.
        own: the hours are those of the profile."""
        values = self._values(hours, own)
        ratios = {}
        for each in hours:
            before = values.get(each.hour - timedelta(hours=1))
            share = 0.0 if before is None else self._correlation
            new = (1 - share**2) ** 0.5  # standard deviation of what the hour before does not say
            shift = min(MOST_AN_HOUR, fall / self._deviation(each) * (1 - share) / new)
            value = (values[each.hour] - share * (before or 0.0)) / new
            ratios[each.hour] = shift * (-value - shift / 2)
        return ratios

    def _values(self, hours: Sequence[HourlyDrafts], own: bool = False) -> dict[datetime, float]:
        return {each.hour: self.residual(each, own) / self._deviation(each) for each in hours}

    def _deviation(self, hour: HourlyDrafts) -> float:
        return max(LEAST_VARIANCE, self._constant + self._by_draft / hour.drafts) ** 0.5

    def _correlation_of(self, hours: Sequence[HourlyDrafts]) -> float:
        """Of neighbouring hours' residuals, in standard deviations; 0 where they differ more than independent ones."""
        values = self._values(hours, own=True)
        pairs = [
            (values[hour - timedelta(hours=1)], value) for hour, value in values.items() if hour - timedelta(hours=1) in values
        ]
        squares = sum(first**2 + second**2 for first, second in pairs) / 2
        return min(MOST_CORRELATED, max(0.0, sum(first * second for first, second in pairs) / squares)) if squares else 0.0


def _by_hour(evidence: Mapping[datetime, float]) -> Float[np.ndarray, " hours"]:
    days = sorted({hour.date() for hour in evidence})
    return np.array(
        [evidence.get(datetime(day.year, day.month, day.day, hour, tzinfo=UTC), 0.0) for day in days for hour in range(HOURS)]
    )


def _variance(residuals: np.ndarray, drafts: np.ndarray) -> tuple[float, float]:
    """Least squares of the squared residuals on 1 and 1 / drafts, neither part below 0."""
    squares, inverse = residuals**2, 1 / drafts
    design = np.stack([np.ones_like(inverse), inverse], axis=1)
    constant, by_draft = np.linalg.lstsq(design, squares, rcond=None)[0]
    if constant < 0:
        return 0.0, float((squares @ inverse) / (inverse @ inverse))
    if by_draft < 0:
        return float(squares.mean()), 0.0
    return float(constant), float(by_draft)


HISTORIES, SERIES, DAYS = 60, 150, 100
"""Resampled histories; series that are followed for each, and days of each: 15,000 days tell a rate of 5 in 10,000."""
KEEPING = 0.95
"""Share of the resampled histories that must keep the rate. A sample's tails are thinner than those of what it was drawn from,
so fewer true histories do: over simulated ones with independent hours the rate was right on average; with autocorrelated hours
it was exceeded (benchmarks/drift.py)."""
LARGEST = 1e6

Increments = Float[np.ndarray, " steps"]


def chart(increments: Increments, bound: float) -> tuple[Float[np.ndarray, " steps"], Bool[np.ndarray, " steps"]]:
    """The sum after each step, and where it crossed the bound. After an alarm the sum begins again at 0."""
    sums, alarms, total = np.zeros(len(increments)), np.zeros(len(increments), dtype=bool), 0.0
    for step, increment in enumerate(increments):
        total = max(0.0, total + increment)
        sums[step], alarms[step] = total, total > bound
        total = 0.0 if total > bound else total
    return sums, alarms


def bound_for(history: Increments, steps_a_day: int, rate: float, rng: np.random.Generator) -> float:
    """The bound that gives about `rate` false alarms a day, on average over histories of this length: an approximation.
    history: increments without a change, in order. A moving-block bootstrap (blocks of a day keep what neighbouring hours
    share) draws histories as they could have been, and from each of them series that are charted: KEEPING of the histories must
    keep the rate, because the true one may be any of them. Raises ValueError for less than two days of history."""
    days = len(history) // steps_a_day
    if days < 2:
        raise ValueError("a bound needs at least two days of history")
    within = np.arange(steps_a_day)

    def blocks(sources: np.ndarray, count: int) -> np.ndarray:
        """`count` blocks from anywhere in each row of `sources`, one after the other."""
        starts = rng.integers(0, sources.shape[1] - steps_a_day + 1, (len(sources), count))
        places = (starts[:, :, None] + within).reshape(len(sources), -1)
        return np.take_along_axis(sources, places, axis=1)

    histories = blocks(np.broadcast_to(history.astype(np.float32), (HISTORIES, len(history))), days)
    series = blocks(np.repeat(histories, SERIES, axis=0), DAYS)

    from resources.drifting.chart_kernels import alarms_in

    def most_keep(bound: float) -> bool:
        rates = alarms_in(series, bound).reshape(HISTORIES, SERIES).mean(axis=1) / DAYS
        return float(np.mean(rates <= rate)) >= KEEPING

    low, high = 0.0, 1.0
    while not most_keep(high) and high < LARGEST:
        low, high = high, 2 * high
    while high - low > 0.02 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if most_keep(middle) else (middle, high)
    return high

"""Compares windows of days with the reference window: every test on every window, and which of them alarm (Holm's procedure).

Guarantee: on a day on which nothing has changed, the probability of any alarm is at most `rate`, under any dependence between
tests, windows and days (Holm 1979), so looking every day costs nothing. (A false discovery rate over all days cannot be bounded
by a procedure that sooner or later alarms: Dandapanthula and Ramdas 2025. Benjamini-Hochberg needs independent or positively
dependent tests; these look at the same sessions.) Two limits: a day that is compared again with other rows is another look; and
a test with nothing to count, or with all counts in one category, leaves Holm's family, so the bound is exact for a fixed family
only.

A test compares means over sessions: by rows, few long ones would decide. A session without anything to count stays at 0."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property

import numpy as np
from jaxtyping import Float

from model_ops.jobs import counted
from resources.drifting.permutation import Columns, PermutationTest, permutation_tests, squared
from resources.drifting.settings import DriftSettings, Reference, strata_of, window_of

LEAST_DAYS = 5
"""Independent comparisons of days that a factor needs; with fewer, how days differ is not known."""
SPLITS = 200


@dataclass(frozen=True)
class Dispersion:
    """How much more days differ than their sessions explain."""

    factor: float
    """1 where days differ by their sessions only."""
    days: int
    """Independent comparisons behind the factor."""


def dispersion(
    counts: Mapping[date, np.ndarray], comparison: Sequence[date], columns: Sequence[Columns], rng: np.random.Generator
) -> list[Dispersion | None]:
    """The dispersion of each test over the days of the reference; None where there are too few days, or nothing to compare.
    counts: [sessions, columns] of each day."""
    results: dict[str, list[PermutationTest]] = {each.name: [] for each in columns}
    groups = set()
    for day in comparison:
        [(inside, outside)] = strata_of([day], [other for other in comparison if other != day]) or [([], [])]
        here, there = _joined(counts, inside), _together(counts, outside)
        if not len(here) or not len(there):
            continue
        groups.add(tuple(sorted([day, *outside])))
        for each, result in zip(columns, permutation_tests([here], [there], columns, rng, 1 / SPLITS), strict=True):
            if result.usual > 0:
                results[each.name].append(result)
    return [_of(results[each.name], each, len(groups)) for each in columns]


def _of(results: list[PermutationTest], columns: Columns, groups: int) -> Dispersion | None:
    days = len(results) - groups
    if days < LEAST_DAYS:
        return None
    ratios = [float(squared(np.array([each.value]), columns.kind)[0]) / each.usual for each in results]
    return Dispersion(float(np.mean(ratios)), days)


def day_level_p(test: PermutationTest, columns: Columns, days: Dispersion) -> float:
    """p-value of a window whose days may differ as the reference's do. A change in the wrong direction has p = 1."""
    if test.usual <= 0 or days.factor <= 0:
        return 1.0
    if columns.kind != "shares" and test.value <= 0:
        return 1.0
    ratio = float(squared(np.array([test.value]), columns.kind)[0]) / test.usual / days.factor
    tail = upper_tail(ratio, *_degrees(test, days))
    return max(tail if columns.kind == "shares" else tail / 2, 1e-300)


def bound_of(test: PermutationTest, columns: Columns, days: Dispersion | None, level: float) -> float | None:
    """The value from which on the p-value is about `level`: of random splits or of days, the larger one. Shown; p decides."""
    if test.usual <= 0:
        return None
    tail = min(1.0, level if columns.kind == "shares" else 2 * level)
    above = _degrees_above(test)
    bound = test.usual * f_quantile(tail, above, 1e6)
    if days is not None and days.factor > 0:
        bound = max(bound, test.usual * days.factor * f_quantile(tail, *_degrees(test, days)))
    return float(bound if columns.kind == "shares" else np.sqrt(bound))


def _degrees_above(test: PermutationTest) -> float:
    return max(1.0, 2 * test.usual**2 / test.spread) if test.spread > 0 else 1.0


def _degrees(test: PermutationTest, days: Dispersion) -> tuple[float, float]:
    above = _degrees_above(test)
    return above, above * days.days


def _joined(counts: Mapping[date, np.ndarray], days: Sequence[date]) -> np.ndarray:
    parts = [counts[day] for day in days if day in counts]
    return np.concatenate(parts) if parts else np.zeros((0, 0))


STEPS = 3_000
TINY = 1e-300
LARGEST = 1e12


def upper_tail(value: float, above: float, below: float) -> float:
    """P(F > value). above, below: degrees of freedom of numerator and denominator, each above 0; ValueError otherwise."""
    if not (above > 0 and below > 0):
        raise ValueError(f"an F distribution has degrees of freedom above 0, not {above} and {below}")
    if value <= 0:
        return 1.0
    return _incomplete_beta(below / (below + above * value), below / 2, above / 2)


def f_quantile(probability: float, above: float, below: float) -> float:
    """The value that F exceeds with this probability, between 0 and LARGEST, by bisection to 1e-6 of it."""
    low, high = 0.0, 1.0
    while upper_tail(high, above, below) > probability and high < LARGEST:
        low, high = high, high * 2
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if upper_tail(middle, above, below) > probability else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return scale * _continued_fraction(x, a, b) / a


def _continued_fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for step in range(1, STEPS):
        for numerator in (
            step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step)),
            -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1)),
        ):
            d, c = 1 / _not_zero(1 + numerator * d), _not_zero(1 + numerator / c)
            fraction *= c * d
        if abs(c * d - 1) < 1e-12:
            return fraction
    return fraction


def _not_zero(value: float) -> float:
    return value if abs(value) > TINY else TINY


Counts = Mapping[date, np.ndarray]
"""Counts [sessions, columns] of each day."""


@dataclass(frozen=True)
class Result:
    """One test of one window, which ends with `day`."""

    day: date
    window_days: int
    test: str
    value: float | None = None
    """PSI for `shares`, else the difference of a share."""
    bound: float | None = None
    """About the value from which on the test alarms."""
    p: float | None = None
    """The larger of the p-values over sessions and over days."""
    level: float | None = None
    """The largest p that alarms; None where all rows count alike (p = 1)."""
    alarm: bool = False
    dispersion: float | None = None
    """How much more days differ than their sessions explain, 1 for no more; None: the reference has too few days to say."""
    sessions: int = 0
    reference_sessions: int = 0
    problem: str = ""
    """Why the window was not compared; then the numbers are None."""


class WindowComparison:
    """The reference's counts, and what each day of the reference says about the others."""

    def __init__(
        self,
        reference: Reference,
        counts: Counts,
        columns: Sequence[Columns],
        settings: DriftSettings,
        rate: float,
        name: str = "",
    ):
        """counts: of the reference's comparison days. rate: of days with an alarm though nothing changed. name: seeds the
        random splits, so that the same traffic gives the same p-values."""
        self.reference, self.columns, self.settings, self.rate = reference, list(columns), settings, rate
        self._counts = self._weighted({day: counts[day] for day in reference.comparison if day in counts})
        self._name = name

    @cached_property
    def dispersions(self) -> dict[str, Dispersion | None]:
        """How much the reference's days differ, by test."""
        by_test = dispersion(self._counts, list(self._counts), self.columns, self._rng(self.reference.end, 0))
        return {each.name: days for each, days in zip(self.columns, by_test, strict=True)}

    def of_day(self, day: date, counts: Counts) -> list[Result]:
        """Every test on every window that ends with `day`. counts: of the days of these windows. Together they alarm on a quiet
        day with a probability of at most `rate`."""
        counts = self._weighted(counts)
        results: list[Result] = []
        tested: list[tuple[int, Columns, PermutationTest]] = []
        for length in self.settings.windows:
            window = window_of(day, length, counts, self.reference.end)
            if length > 1 and len(window) < 2:
                continue  # the same as the window of one day, or nothing
            strata = strata_of(window, list(self._counts))
            inside, outside = [
                [_together(source, days[side]) for days in strata] for side, source in ((0, counts), (1, self._counts))
            ]
            blank = Result(day, length, "", sessions=sum(map(len, inside)), reference_sessions=sum(map(len, outside)))
            problem = self._problem(blank)
            if problem:
                results += [replace(blank, test=each.name, problem=problem) for each in self.columns]
                continue
            seen = [each for each in self.columns if _has_counts(each, inside) and _has_counts(each, outside)]
            results += [
                replace(blank, test=each.name, problem=self._unseen(each, inside, outside))
                for each in self.columns
                if each not in seen
            ]
            able = [each for each in seen if _can_differ(each, [*inside, *outside])]
            results += [replace(blank, test=each.name, value=0.0, p=1.0) for each in seen if each not in able]
            if able:
                tests = permutation_tests(inside, outside, able, self._rng(day, length), self._least_p)
                for each, permutation in zip(able, tests, strict=True):
                    tested.append((len(results), each, permutation))
                    results.append(replace(blank, test=each.name))
        return self._decided(results, tested)

    def _weighted(self, counts: Counts) -> Counts:
        return {day: sessions_alike(of_day, self.columns) for day, of_day in counts.items()}

    @property
    def _least_p(self) -> float:
        """Half of the smallest level of Holm's procedure: an alarm leaves room for one random split that reaches it."""
        return self.rate / (2 * len(self.columns) * len(self.settings.windows))

    def _decided(self, results: list[Result], tested: list[tuple[int, Columns, PermutationTest]]) -> list[Result]:
        p_values = []
        for _, each, test in tested:
            days = self.dispersions[each.name]
            p_values.append(max(test.p, day_level_p(test, each, days)) if days else test.p)
        for (place, each, test), p, decision in zip(tested, p_values, holm(p_values, self.rate), strict=True):
            days = self.dispersions[each.name]
            results[place] = replace(
                results[place],
                value=test.value,
                p=p,
                level=decision.level,
                alarm=decision.alarm,
                bound=bound_of(test, each, days, self.rate / len(tested)),
                dispersion=days.factor if days else None,
            )
        return results

    def _problem(self, blank: Result) -> str:
        least = self.settings.least_sessions
        for count, where in ((blank.sessions, "the window"), (blank.reference_sessions, "the reference")):
            if count < least:
                return f"{where} has {counted(count, 'session')}, fewer than drift.least_sessions ({least})"
        return ""

    def _unseen(self, columns: Columns, inside: Sequence[np.ndarray], outside: Sequence[np.ndarray]) -> str:
        groups = (("the window", inside), ("the reference", outside))
        where = [name for name, strata in groups if not _has_counts(columns, strata)]
        return f"{' and '.join(where)} {'have' if len(where) > 1 else 'has'} nothing to count for it"

    def _rng(self, day: date, length: int) -> np.random.Generator:
        digest = hashlib.sha256(f"{self._name}/{self.reference.start}/{day}/{length}".encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def _together(counts: Counts, days: Sequence[date]) -> np.ndarray:
    return np.concatenate([counts[day] for day in days])


def _can_differ(columns: Columns, strata: Sequence[np.ndarray]) -> bool:
    """Whether window and reference together have counts in two categories. A test that cannot differ is not one of the many."""
    return bool(np.count_nonzero(sum(columns.of(part).sum(axis=0) for part in strata)) > 1)


def _has_counts(columns: Columns, strata: Sequence[np.ndarray]) -> bool:
    return any(columns.of(part).any() for part in strata)


@dataclass(frozen=True)
class HolmDecision:
    """Whether a test alarms."""

    alarm: bool
    level: float
    """The largest p-value with which the test alarms, given the others."""


def holm(p_values: Sequence[float], rate: float) -> list[HolmDecision]:
    """A decision for each p-value, in their order. Raises ValueError for a p-value or rate outside of (0, 1]."""
    if not 0 < rate <= 1 or any(not 0 < p <= 1 for p in p_values):
        raise ValueError("p-values and the rate are above 0 and at most 1")
    decided = [HolmDecision(False, rate)] * len(p_values)
    stopped: float | None = None
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        level = rate / (len(p_values) - rank) if stopped is None else stopped
        alarm = stopped is None and p_values[place] <= level
        if not alarm and stopped is None:
            stopped = level
        decided[place] = HolmDecision(alarm, level)
    return decided


def sessions_alike(
    counts: Float[np.ndarray, "sessions columns"], columns: Sequence[Columns]
) -> Float[np.ndarray, "sessions columns"]:
    """The counts as shares of each session."""
    weighted = counts.astype(float)
    for each in columns:
        part = each.of(weighted)
        part /= np.maximum(part.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    return weighted

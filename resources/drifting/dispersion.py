"""How much a workload's days differ from each other beyond their sessions, measured on the reference's own days.

Sessions of one day may be alike for a reason of that day: an outage, a campaign, a batch job. A permutation test over sessions
calls this a difference. Each day of the reference is therefore compared with the others of its stratum as a window would be.
`factor` is the mean of the squared statistics over what random splits give: 1 where days differ by their sessions only. A
window's squared statistic, over what its own splits give and over the factor, is then F-distributed, with degrees of freedom
matched to the mean and variance of the splits (Satterthwaite) above, and those of all the reference's days below.

The tail of F is the regularised incomplete beta function, by its continued fraction (Press et al., Numerical Recipes, 6.4;
modified Lentz), without scipy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from resources.drifting.days import strata_of
from resources.drifting.permutation import Columns, PermutationTest, permutation_tests, squared

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

    counts: [sessions, columns] of each day.
    """
    results: dict[str, list[PermutationTest]] = {each.name: [] for each in columns}
    groups = set()
    for day in comparison:
        [(inside, outside)] = strata_of([day], [other for other in comparison if other != day]) or [([], [])]
        here, there = _together(counts, inside), _together(counts, outside)
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
    """Degrees of freedom of a scaled chi-squared variable with this mean and variance."""
    return max(1.0, 2 * test.usual**2 / test.spread) if test.spread > 0 else 1.0


def _degrees(test: PermutationTest, days: Dispersion) -> tuple[float, float]:
    above = _degrees_above(test)
    return above, above * days.days


def _together(counts: Mapping[date, np.ndarray], days: Sequence[date]) -> np.ndarray:
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

"""How much a workload's days differ from each other beyond their sessions, measured on the reference's own days.

    found = dispersion(counts, comparison, columns, rng)[0]         # Dispersion(factor=1.1, days=14), or None
    day_level_p(permuted, found)                                      # p-value of a window, given that days differ so much

Sessions of one day may be alike for a reason of that day: an outage, a campaign, a batch job. A permutation test over sessions
calls this a difference. Each day of the reference is therefore compared with the others of its stratum as a window would be.
`factor` is the mean of the squared statistics over what random splits give: 1 where days differ by their sessions only. A
window's squared statistic, over what its own splits give and over the factor, is then F-distributed, with degrees of freedom
matched to the mean and variance of the splits (Satterthwaite) above, and those of all the reference's days below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from resources.drifting.days import strata_of
from resources.drifting.f_distribution import quantile, upper_tail
from resources.drifting.permutation import Columns, Permuted, permuted
from resources.drifting.statistics import squared

LEAST_DAYS = 5
"""Independent comparisons of days that a factor needs; with fewer, how days differ is not known."""
SPLITS = 200


@dataclass(frozen=True)
class Dispersion:
    """factor: 1 where days differ by their sessions only. days: independent comparisons behind it."""

    factor: float
    days: int


def dispersion(
    counts: Mapping[date, np.ndarray], comparison: Sequence[date], columns: Sequence[Columns], rng: np.random.Generator
) -> list[Dispersion | None]:
    """The dispersion of each test over the days of the reference; None where there are too few days, or nothing to compare.

    counts: [sessions, columns] of each day.
    """
    found: dict[str, list[Permuted]] = {each.name: [] for each in columns}
    groups = set()
    for day in comparison:
        [(inside, outside)] = strata_of([day], [other for other in comparison if other != day]) or [([], [])]
        here, there = _together(counts, inside), _together(counts, outside)
        if not len(here) or not len(there):
            continue
        groups.add(tuple(sorted([day, *outside])))
        for each, result in zip(columns, permuted([here], [there], columns, rng, 1 / SPLITS), strict=True):
            if result.usual > 0:
                found[each.name].append(result)
    return [_of(found[each.name], each, len(groups)) for each in columns]


def _of(results: list[Permuted], columns: Columns, groups: int) -> Dispersion | None:
    days = len(results) - groups
    if days < LEAST_DAYS:
        return None
    ratios = [float(squared(np.array([each.value]), columns.kind)[0]) / each.usual for each in results]
    return Dispersion(float(np.mean(ratios)), days)


def day_level_p(found: Permuted, columns: Columns, days: Dispersion) -> float:
    """p-value of a window whose days may differ as the reference's do. A change in the wrong direction has p = 1."""
    if found.usual <= 0 or days.factor <= 0:
        return 1.0
    if columns.kind != "shares" and found.value <= 0:
        return 1.0
    ratio = float(squared(np.array([found.value]), columns.kind)[0]) / found.usual / days.factor
    tail = upper_tail(ratio, *_degrees(found, days))
    return max(tail if columns.kind == "shares" else tail / 2, 1e-300)


def bound_of(found: Permuted, columns: Columns, days: Dispersion | None, level: float) -> float | None:
    """The value from which on the p-value is about `level`: of random splits or of days, the larger one. Shown; p decides."""
    if found.usual <= 0:
        return None
    tail = min(1.0, level if columns.kind == "shares" else 2 * level)
    above = _degrees_above(found)
    bound = found.usual * quantile(tail, above, 1e6)
    if days is not None and days.factor > 0:
        bound = max(bound, found.usual * days.factor * quantile(tail, *_degrees(found, days)))
    return float(bound if columns.kind == "shares" else np.sqrt(bound))


def _degrees_above(found: Permuted) -> float:
    """Degrees of freedom of a scaled chi-squared variable with this mean and variance."""
    return max(1.0, 2 * found.usual**2 / found.spread) if found.spread > 0 else 1.0


def _degrees(found: Permuted, days: Dispersion) -> tuple[float, float]:
    above = _degrees_above(found)
    return above, above * days.days


def _together(counts: Mapping[date, np.ndarray], days: Sequence[date]) -> np.ndarray:
    parts = [counts[day] for day in days if day in counts]
    return np.concatenate(parts) if parts else np.zeros((0, 0))

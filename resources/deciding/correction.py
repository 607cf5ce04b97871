"""By which ratio earlier predictions were off, so that the next one is corrected.

    ratio = ratio_of([(predicted, real), ...])          # Ratio(value=1.2, low=0.9, n=4)
    gain_ratio(recent(decisions, now), "drafter_new")

Few outcomes say little: OWN pretended outcomes, at which the prediction was right, are averaged in. For the lower bound, an
outcome that was better than its prediction counts as one that was right: good outcomes make no bound smaller, nor larger.
Outcomes of the last DAYS days count, so that an action which failed once is tried again some time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from model_ops.students_t import upper_quantile
from resources.deciding.decision import Action, Decision, Option

DAYS = 60
OWN = 2
WIDEST = (0.0, 10.0)
"""A single ratio beyond these counts as this: a prediction near 0 has no ratio."""


@dataclass(frozen=True)
class Ratio:
    """real / predicted."""

    value: float = 1.0
    low: float = 1.0
    """Lower end of the one-sided 95 % interval (Student's t) of the mean ratio, between 0 and 1; ratios above 1 count as 1."""
    n: int = 0
    """Number of outcomes behind it."""


def recent(decisions: Sequence[Decision], now: datetime) -> list[Decision]:
    """Those whose outcomes still count."""
    return [each for each in decisions if each.ts > now - timedelta(DAYS)]


def ratio_of(outcomes: Iterable[tuple[float, float]]) -> Ratio:
    """The mean of the outcomes' ratios. Predictions of 0 or less have none, and are left out; a loss counts as a ratio of 0."""
    least, most = WIDEST
    found = [min(most, max(least, real / predicted)) for predicted, real in outcomes if predicted > 0]
    if not found:
        return Ratio()
    every = [*found, *[1.0] * OWN]
    return Ratio(sum(every) / len(every), max(0.0, _lower_end([min(1.0, each) for each in every])), len(found))


def _lower_end(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((each - mean) ** 2 for each in values) / (len(values) - 1))
    return mean - upper_quantile(len(values) - 1) * spread / math.sqrt(len(values))


def cost_ratio(decisions: Sequence[Decision], action: Action) -> Ratio:
    """Of the costs of settled decisions with this action."""
    return ratio_of((option.predicted_cost_s / _given(option.corrected_cost), each.cost_s)
                    for each, option in _settled(decisions, action)
                    if option.predicted_cost_s and each.cost_s and each.outcome in ("released", "waiting", "no_better"))


def gain_ratio(decisions: Sequence[Decision], action: Action) -> Ratio:
    """Of their gains."""
    return ratio_of((option.predicted_gain / _given(option.corrected_gain), each.gain)
                    for each, option in _settled(decisions, action)
                    if option.predicted_gain and each.gain is not None)


def _settled(decisions: Sequence[Decision], action: Action) -> Iterator[tuple[Decision, Option]]:
    for each in decisions:
        if each.action == action and each.chosen is not None:
            yield each, each.chosen


def _given(ratio: float) -> float:
    """The ratio that a prediction was corrected by: outcomes are compared with what was predicted before it."""
    return ratio or 1.0

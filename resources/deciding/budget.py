"""The weekly budget of a workload, as token buckets: what may still be used now, from the decisions so far.

    left = level(capacity=3.0, uses=[(ts, 1.0), ...], now=now)
    refusal(settings, decisions, cost_hours=0.4, money=None, now=now)        # a sentence, or None

A bucket is full at first and refills evenly within a week. A decision that started a run takes what it was predicted to cost
until it is settled, then what it really cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from resources.deciding.decision import Decision
from resources.deciding.settings import BudgetSettings

WEEK = timedelta(days=7)
NEVER_ENOUGH = "never: it is more than a week's"
"""Of a refusal: waiting does not help."""


def level(capacity: float, uses: Iterable[tuple[datetime, float]], now: datetime) -> float:
    """What a bucket holds now. May be below 0: a run that cost more than was predicted is paid off over time."""
    held, at = capacity, None
    for ts, amount in sorted(uses):
        if at is not None:
            held = min(capacity, held + capacity * max(timedelta(0), ts - at) / WEEK)
        held, at = held - amount, ts
    return held if at is None else min(capacity, held + capacity * max(timedelta(0), now - at) / WEEK)


def refusal(settings: BudgetSettings, decisions: Sequence[Decision], cost_hours: float, money: float | None,
            now: datetime) -> str | None:
    """Why a run of this predicted cost is not within the budget; None if it is.

    cost_hours: device hours. money: None where no price is known.
    """
    started = [each for each in decisions if each.started]
    for name, capacity, wanted, unit, uses in (
        ("runs_per_week", settings.runs_per_week, 1.0, "runs", [(each.ts, 1.0) for each in started]),
        ("device_hours_per_week", settings.device_hours_per_week, cost_hours, "device hours",
         [(each.ts, each.spent_hours) for each in started]),
        ("money_per_week", settings.money_per_week, money, "money", [(each.ts, each.spent_money or 0.0) for each in started]),
    ):
        if capacity is None:
            continue
        if capacity == 0:
            return f"automation.decide.budget.{name} is 0"
        if wanted is None:
            return f"automation.decide.budget.{name} is set, and the cost in money is unknown: set price_per_device_hour"
        held = level(capacity, uses, now)
        if held < wanted:
            again = f"about {_at(now, capacity, held, wanted)}" if wanted <= capacity else NEVER_ENOUGH
            return (f"the budget of {unit} is used: {max(0.0, held):.3g} of {capacity:g} a week are left, and {wanted:.3g} are "
                    f"needed; it suffices {again} (automation.decide.budget.{name})")
    return None


def _at(now: datetime, capacity: float, held: float, wanted: float) -> str:
    """When a bucket has refilled enough, in UTC."""
    return f"{now + WEEK * ((wanted - held) / capacity):%Y-%m-%d %H:%M} UTC"

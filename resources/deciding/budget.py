"""The weekly budget of a workload, as token buckets: what may still be used now, from the decisions so far.

    left = level(capacity=3.0, uses=[(ts, 1.0), ...], now=now)
    refusal(settings, decisions, cost_hours=0.4, money=None, now=now)        # a sentence, or None

A bucket is full at first and refills evenly within a week, up to a week's amount; that of runs holds at least one run. A
decision that started a run takes what it was predicted to cost until it is settled, then what it really cost. So with N runs a
week (N a whole number) at most 2 N - 1 start within less than seven days. With an amount A a week, those that start within less
than seven days use less than 2 A, and what the last of them costs beyond its prediction. What a person starts despite the
budget comes on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from resources.deciding.decision import Decision
from resources.deciding.settings import BudgetSettings

WEEK = timedelta(days=7)
NEVER_ENOUGH = "never: it is more than a week's"
"""Of a refusal: waiting does not help."""
UNKNOWN_COST = "is set, and what a run costs is unknown"
"""Of a refusal: neither does it here."""
ONE_RUN = 1.0
"""What the bucket of runs holds at least: with less, none would ever start."""


def level(capacity: float, uses: Iterable[tuple[datetime, float]], now: datetime, a_week: float | None = None) -> float:
    """What a bucket holds now. a_week: what it gets within a week; None: its capacity. May be below 0: a run that cost more
    than was predicted is paid off over time."""
    held, at, refill = capacity, None, capacity if a_week is None else a_week
    for ts, amount in sorted(uses):
        if at is not None:
            held = min(capacity, held + refill * max(timedelta(0), ts - at) / WEEK)
        held, at = held - amount, ts
    return held if at is None else min(capacity, held + refill * max(timedelta(0), now - at) / WEEK)


def refusal(settings: BudgetSettings, decisions: Sequence[Decision], cost_hours: float | None, money: float | None,
            now: datetime, unknown: Sequence[str] = ()) -> str | None:
    """Why a run of this predicted cost is not within the budget; None if it is.

    cost_hours: device hours; None: unknown, because of the stages in `unknown`. money: None where no price is known either.
    """
    started = [each for each in decisions if each.started]
    for name, a_week, wanted, unit, uses in (
        ("runs_per_week", settings.runs_per_week, 1.0, "runs", [(each.ts, 1.0) for each in started]),
        ("device_hours_per_week", settings.device_hours_per_week, cost_hours, "device hours",
         [(each.ts, each.spent_hours) for each in started]),
        ("money_per_week", settings.money_per_week, money, "money", [(each.ts, each.spent_money or 0.0) for each in started]),
    ):
        if a_week is None:
            continue
        if a_week == 0:
            return f"automation.decide.budget.{name} is 0"
        if wanted is None:
            return f"automation.decide.budget.{name} {UNKNOWN_COST}: {_remedy(cost_hours, unknown)}"
        capacity = max(a_week, ONE_RUN) if unit == "runs" else a_week
        held = level(capacity, uses, now, a_week)
        if held < wanted:
            again = f"about {_at(now, a_week, held, wanted)}" if wanted <= capacity else NEVER_ENOUGH
            return (f"the budget of {unit} is used: {max(0.0, held):.3g} of {a_week:g} a week are left, and {wanted:.3g} are "
                    f"needed; it suffices {again} (automation.decide.budget.{name})")
    return None


def _remedy(cost_hours: float | None, unknown: Sequence[str]) -> str:
    if cost_hours is not None:
        return "set price_per_device_hour"
    return (f"nothing says how long {' and '.join(unknown) or 'a stage of it'} takes; a run by hand measures it: "
            "millrace run RECIPE")


def _at(now: datetime, a_week: float, held: float, wanted: float) -> str:
    """When a bucket has refilled enough, in UTC."""
    return f"{now + WEEK * ((wanted - held) / a_week):%Y-%m-%d %H:%M} UTC"

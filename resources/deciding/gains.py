"""Predicts what an action gains: of drafters the relative rise of the acceptance length, else the fall of the held-out loss.

    gain = drafter_gain(seen, rise, continued=True, step_share=0.25)         # Estimate(value, low, says), or None

A drafter gains in two ways, of which the one with the higher lower bound counts, since they overlap:

- what acceptance lost since the release, by the servers' counters, comes back. A drafter that continues the previous one gets
  RECOVERED of what a new one gets (benchmarks/results/drafter_drift.json, acceptance at temperature 1);
- more rows and more steps, by the slope of the drafter's own learning curve.

A model gains by more rows only, by the slope of its learning curve.
"""

from __future__ import annotations

import math

from model_ops.students_t import upper_quantile
from model_ops.training.learning_curve import Rise
from resources.deciding.estimate import Estimate
from resources.deciding.evidence import Evidence

RECOVERED, RECOVERED_LOW = 0.80, 0.59
"""(2.174 - 1.141) / (2.433 - 1.141), and with the ends of the intervals that give least (2.046 - 1.160) / (2.651 - 1.160)."""


def drafter_gain(seen: Evidence, rise: Rise | None, continued: bool, step_share: float) -> Estimate | None:
    """rise: of the acceptance length by a doubling of the tokens trained on. step_share: of a new drafter's steps, for one that
    continues."""
    found = [each for each in (_recovered(seen, continued), _learnt(seen, rise, continued, step_share)) if each is not None]
    return max(found, key=lambda each: each.low, default=None)


def model_gain(seen: Evidence, rise: Rise | None) -> Estimate | None:
    """rise: of the held-out loss by a doubling, below 0 where more rows help."""
    if rise is None or seen.model is None:
        return None
    doublings = _doublings(seen.rows, seen.model.rows)
    falls = Rise(-rise.value, rise.error, rise.n)
    return Estimate(falls.value * doublings, falls.low * doublings,
                    f"{falls.value:.3g} nats a doubling (at least {falls.low:.3g}) by the model's learning curve, "
                    f"{doublings:.2f} doublings of its rows")


def _recovered(seen: Evidence, continued: bool) -> Estimate | None:
    if not (seen.tau_released and seen.tau_served and seen.tau_served_error is not None):
        return None
    share, least = (RECOVERED, RECOVERED_LOW) if continued else (1.0, 1.0)
    served_high = seen.tau_served + upper_quantile(seen.tau_served_days - 1) * seen.tau_served_error
    released_low = seen.tau_released_low or seen.tau_released
    value = share * max(0.0, seen.tau_released / seen.tau_served - 1)
    return Estimate(value, least * max(0.0, released_low / served_high - 1),
                    f"acceptance length {seen.tau_served:.3f} as served, {seen.tau_released:.3f} in the release's report; "
                    f"{share:z.0%} of what was lost comes back")


def _learnt(seen: Evidence, rise: Rise | None, continued: bool, step_share: float) -> Estimate | None:
    if rise is None or seen.drafter is None or not seen.drafter_tau:
        return None
    rows = _doublings(seen.rows, seen.drafter.rows)
    doublings = min(rows, math.log2(1 + step_share)) if continued else rows
    tau = seen.drafter_tau
    return Estimate(rise.value * doublings / tau, rise.low * doublings / tau,
                    f"{rise.value:.3g} a doubling (at least {rise.low:.3g}) by the drafter's learning curve, {doublings:.2f} "
                    f"doublings of its rows, at {tau:.3f}")


def _doublings(now: int, then: int) -> float:
    return math.log2(now / then) if now > then > 0 else 0.0

"""Predicts what an action takes and gains: seconds stage by stage, and the rise of acceptance or the fall of held-out loss.

    made = PastVersion(seconds=12.0, rows=800, config={...}, metrics={...})       # of one version of a stage
    predicted = seconds_of(work, {"speculator": [made, ...]}, facts, rows=900, new_share=0.1)    # {"speculator": 18.2, ...}
    gain = drafter_gain(seen, rise, continued=True, step_share=0.25)         # Estimate(value, low, says), or None

A stage takes as long as before, in proportion to its rows where it works through all of them. What an action changes about a
stage (fewer steps, answers that are there already, fewer prompts) is taken from an earlier version that was made so, else
from the share of the work that is left.

A drafter gains in two ways, of which the one with the higher lower bound counts, since they overlap:
- what acceptance lost since the release, by the servers' counters, comes back. A drafter that continues the previous one gets
  RECOVERED of what a new one gets (benchmarks/results/drafter_drift.json, acceptance at temperature 1);
- more rows and more steps, by the slope of the drafter's own learning curve.
A model gains by more rows only, by the slope of its learning curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model_ops.training import Rise, upper_quantile
from resources.deciding.actions import Work
from resources.deciding.evidence import Estimate, Evidence, RecipeFacts
from resources.stages import STAGES, stage

WORKERS = {found.name for found in STAGES if found.kind == "model" or found.name in ("speculator_dataset", "evaluation_report")}
"""Stages without whose cost a prediction would say nothing."""
AROUND_S = 12.0
"""Seconds of a run around its steps: interpreters that start, definitions that load (docs/benchmarks.md, demo)."""
LEAST_SHARE = 0.1
"""Of a stage that has little left to do: its worker starts and reads models anyway."""


@dataclass(frozen=True)
class PastVersion:
    """One version of a stage, newest first in lists."""

    seconds: float
    """Seconds of the stage's step, or of the work within it."""
    rows: int
    """Cleaned rows of the workload at that time."""
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    continued: bool = False


def unknown_stages(work: Work, made: Mapping[str, Sequence[PastVersion]]) -> tuple[str, ...]:
    """Stages without whose cost a prediction would say nothing, of which nothing says what they cost."""
    return tuple(name for name in work.stages if name in WORKERS and not made.get(name))


def seconds_of(
    work: Work, made: Mapping[str, Sequence[PastVersion]], facts: RecipeFacts, rows: int, new_share: float
) -> dict[str, float] | None:
    """Predicted seconds by stage. new_share: share of the rows that were not trained on. None if the cost of a worker's stage
    is unknown."""
    if unknown_stages(work, made):
        return None
    known = {
        name: _seconds(name, work.overrides.get(name, {}), made[name], facts, rows, new_share)
        for name in work.stages
        if made.get(name)
    }
    return known | {"around the steps": AROUND_S}


def _seconds(
    name: str, changed: Mapping[str, Any], versions: Sequence[PastVersion], facts: RecipeFacts, rows: int, new_share: float
) -> float:
    continues = bool(changed.get("continue_from_last") or changed.get("reuse"))
    alike = [each for each in versions if each.continued == continues]
    last = alike[0] if alike else versions[0]
    if name == "base_model" and not changed.get("again"):
        return 0.0  # made again only where its files changed, which no row does
    seconds = last.seconds * _grown(name, last, rows)
    if continues and not alike:
        seconds *= max(LEAST_SHARE, _left(name, changed, new_share))
    if name == "evaluation_report" and facts.evaluation_prompts:
        wanted = changed.get("share", 1.0) * facts.evaluation_prompts
        seconds *= wanted / (last.config.get("prompts") or facts.evaluation_prompts)
    return seconds


def _grown(name: str, last: PastVersion, rows: int) -> float:
    """By how much more there is to do than then: nothing more where the number of steps or prompts is fixed."""
    fixed = last.config.get("steps") or last.config.get("prompts")
    whole = stage(name).kind == "dataset" or last.config.get("epochs")
    return 1.0 if fixed or not whole or not last.rows else max(1.0, rows / last.rows)


def _left(name: str, changed: Mapping[str, Any], new_share: float) -> float:
    """Share of a stage's work that is left."""
    if "step_share" in changed:
        return float(changed["step_share"])
    if "replay" in changed:
        return min(1.0, new_share * (1 + float(changed["replay"])))
    return new_share


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
    return Estimate(
        falls.value * doublings,
        falls.low * doublings,
        f"{falls.value:.3g} nats a doubling (at least {falls.low:.3g}) by the model's learning curve, "
        f"{doublings:.2f} doublings of its rows",
    )


def _recovered(seen: Evidence, continued: bool) -> Estimate | None:
    if not (seen.tau_released and seen.tau_served and seen.tau_served_error is not None):
        return None
    share, least = (RECOVERED, RECOVERED_LOW) if continued else (1.0, 1.0)
    served_high = seen.tau_served + upper_quantile(seen.tau_served_days - 1) * seen.tau_served_error
    released_low = seen.tau_released_low or seen.tau_released
    value = share * max(0.0, seen.tau_released / seen.tau_served - 1)
    return Estimate(
        value,
        least * max(0.0, released_low / served_high - 1),
        f"acceptance length {seen.tau_served:.3f} as served, {seen.tau_released:.3f} in the release's report; "
        f"{share:z.0%} of what was lost comes back",
    )


def _learnt(seen: Evidence, rise: Rise | None, continued: bool, step_share: float) -> Estimate | None:
    if rise is None or seen.drafter is None or not seen.drafter_tau:
        return None
    rows = _doublings(seen.rows, seen.drafter.rows)
    doublings = min(rows, math.log2(1 + step_share)) if continued else rows
    tau = seen.drafter_tau
    return Estimate(
        rise.value * doublings / tau,
        rise.low * doublings / tau,
        f"{rise.value:.3g} a doubling (at least {rise.low:.3g}) by the drafter's learning curve, {doublings:.2f} "
        f"doublings of its rows, at {tau:.3f}",
    )


def _doublings(now: int, then: int) -> float:
    return math.log2(now / then) if now > then > 0 else 0.0

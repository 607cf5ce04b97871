"""Seconds that an action would take, stage by stage, from the runs that made the versions that there are.

    made = Made(seconds=12.0, rows=800, config={...}, metrics={...})       # of one version of a stage
    predicted = seconds_of(work, {"speculator": [made, ...]}, facts, rows=900, new_share=0.1)    # {"speculator": 18.2, ...}

A stage takes as long as before, in proportion to its rows where it works through all of them. What an action changes about a
stage (fewer steps, answers that are there already, fewer prompts) is taken from an earlier version that was made so, else
from the share of the work that is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resources.deciding.actions import Work
from resources.deciding.facts import RecipeFacts
from resources.stages import STAGES, stage

WORKERS = {found.name for found in STAGES if found.kind == "model" or found.name in ("speculator_dataset", "evaluation_report")}
"""Stages without whose cost a prediction would say nothing."""
AROUND_S = 12.0
"""Seconds of a run around its steps: interpreters that start, definitions that load (docs/benchmarks.md, demo)."""
LEAST_SHARE = 0.1
"""Of a stage that has little left to do: its worker starts and reads models anyway."""


@dataclass(frozen=True)
class Made:
    """One version of a stage, newest first in lists."""

    seconds: float
    """Seconds of the stage's step, or of the work within it."""
    rows: int
    """Cleaned rows of the workload at that time."""
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    continued: bool = False


def unknown_stages(work: Work, made: Mapping[str, Sequence[Made]]) -> tuple[str, ...]:
    """Stages without whose cost a prediction would say nothing, of which nothing says what they cost."""
    return tuple(name for name in work.stages if name in WORKERS and not made.get(name))


def seconds_of(work: Work, made: Mapping[str, Sequence[Made]], facts: RecipeFacts, rows: int,
               new_share: float) -> dict[str, float] | None:
    """Predicted seconds by stage. new_share: share of the rows that were not trained on. None if the cost of a worker's stage
    is unknown."""
    if unknown_stages(work, made):
        return None
    known = {name: _seconds(name, work.overrides.get(name, {}), made[name], facts, rows, new_share)
             for name in work.stages if made.get(name)}
    return known | {"around the steps": AROUND_S}


def _seconds(name: str, changed: Mapping[str, Any], versions: Sequence[Made], facts: RecipeFacts, rows: int,
             new_share: float) -> float:
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


def _grown(name: str, last: Made, rows: int) -> float:
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

"""Chooses the demo's steps so that it ends within its budget on this machine.

One share shortens steps of the four trainings, prompts of the drafter's answers and of the evaluation. It is chosen once for a
lake and stored there: a stopped demo continues with the same recipe.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from model_ops.files import write_json
from pipelines.contract import Recipe, read_recipe
from pipelines.planning import Speed, TrafficSize, speed_of, stage_seconds

SHORTENED = (
    ("tiny", "steps"),
    ("sft", "steps"),
    ("student", "steps"),
    ("speculator", "steps"),
    ("speculator", "prompts"),
    ("evaluation", "prompts"),
)
"""(section of the recipe, key): what a slow machine does less of. The first such key of the section counts. Rows of the
evaluation stay: on a few of them the intervals of the gates are too wide to hold."""
SHARES = tuple(round(1 - 0.05 * step, 2) for step in range(19))
"""From the whole recipe to a tenth of it, less than which no model learns anything."""
USED = 0.85
"""Share of the budget that the prediction may fill: the rest is what a prediction cannot know."""
FEWEST = {"steps": 8, "prompts": 16}
KEPT = "demo-steps.json"
"""File of the lake with the share that was chosen for it."""


@dataclass(frozen=True)
class FittedSteps:
    share: float
    """Share of the recipe's steps."""
    text: str
    seconds: dict[str, float]
    """Predicted seconds, by stage."""
    whole: float
    """Seconds of the whole recipe."""
    left_out: list[str]
    """What is left out, in words."""
    speed: Speed


def fit_steps(
    path: Path, budget: float, traffic: TrafficSize, speed: Speed | None = None, share: float | None = None
) -> FittedSteps:
    """The largest share of the recipe's steps that is predicted to end within `budget` seconds, or the given one."""
    text = path.read_text(encoding="utf-8")
    whole = _read(text, path)
    speed = speed or speed_of(whole)
    predicted = {}
    for each in SHARES if share is None else (1.0, share):
        changed, left_out = shortened(text, each)
        predicted[each] = stage_seconds(_read(changed, path), speed, traffic)
        if share is None and sum(predicted[each].values()) <= USED * budget:
            break
    return FittedSteps(each, changed, predicted[each], sum(predicted[1.0].values()), left_out, speed)


def shortened(text: str, share: float) -> tuple[str, list[str]]:
    """The recipe's text with a share of what SHORTENED lists, and what was left out."""
    left_out = []
    for section, key in SHORTENED if share < 1 else ():
        match = re.search(rf"^{section}:(?:.|\n)*?\b{key}: (\d+)", text, re.MULTILINE)
        if match is None:
            raise ValueError(f"the recipe has no {section}.{key} to shorten")
        before = int(match[1])
        after = min(before, max(FEWEST[key], round(before * share)))
        text = text[: match.start(1)] + str(after) + text[match.end(1) :]
        left_out += [f"{section} {after} of {before} {key}"] if after < before else []
    return text, left_out


def stored_share(lake: Path) -> float | None:
    """The share that was chosen for this lake; None for a new one."""
    try:
        return float(json.loads((lake / KEPT).read_text())["share"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(lake: Path, choice: FittedSteps) -> None:
    write_json(
        lake / KEPT,
        {
            "share": choice.share,
            "seconds": choice.seconds,
            "gflops": choice.speed.gflops,
            "precision": choice.speed.precision,
            "left_out": choice.left_out,
        },
    )


def _read(text: str, path: Path) -> Recipe:
    return read_recipe(text, path.parent)

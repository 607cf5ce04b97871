"""What can be done: which stages each action makes again, which models it keeps as they are, what it changes in the run.

A pinned model is used as it is, although its inputs have newer versions: a drafter learns new rows for the released target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from resources.deciding.decisions import Action, Decision
from resources.deciding.evidence import RecipeFacts
from resources.stages import STAGES, stage

DATASETS = tuple(
    each.name
    for each in STAGES
    if each.kind in ("table", "dataset") and each.group in ("traffic", "datasets") and not each.is_daily and not each.opt_in
)
"""What every training makes of the rows first."""
ACTIONS: tuple[Action, ...] = ("drafter_continued", "drafter_new", "sft_continued", "preference", "full")
DRAFTERS = ("drafter_continued", "drafter_new")
AFTER_THE_MODEL = ("evaluation_report", "release_candidate", "endpoint")
EVALUATED_SHARE = 0.5
"""Of the evaluation's rows and prompts, where only the drafter is retrained: its target was measured before."""
SPELLED: dict[Action, str] = {
    "nothing": "nothing",
    "drafter_continued": "a drafter continued from the previous one",
    "drafter_new": "a new drafter",
    "sft_continued": "a model continued from the previous one on new rows and some old ones",
    "preference": "preference training on the newest feedback",
    "full": "everything that is out of date",
}
"""For sentences."""


@dataclass(frozen=True)
class Work:
    stages: list[str]
    """Stages to make again, in order."""
    pinned: list[str] = field(default_factory=list)
    """Models that are used as they are."""
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Overrides of the recipe, by stage."""

    @classmethod
    def of(cls, decision: Decision, facts: RecipeFacts) -> Work:
        """What the run of a decision makes."""
        return work_of(decision.action, facts, bool(decision.evidence.get("widened")))


def work_of(action: Action, facts: RecipeFacts, widened: bool = False) -> Work:
    """What a run of an action makes. widened: a test of drift alarms, so the evaluation takes more rows and prompts."""
    settings = facts.decide
    models = [*facts.policy.stages, *([facts.policy.drafting_model] if facts.policy.drafting_model else [])]
    every = [
        each.name for each in STAGES if each.name not in facts.policy.disabled and not each.is_daily and each.name != "logs"
    ]
    only_drafter = action in DRAFTERS
    share = (EVALUATED_SHARE if only_drafter else 1.0) * (settings.drift_widens if widened else 1.0)
    changed: dict[str, dict[str, Any]] = {"evaluation_report": {"share": share}} if share != 1 else {}
    if action == "full":
        return Work([*every, *facts.named_datasets], [], changed)
    if only_drafter:
        wanted = {*DATASETS, "speculator_dataset", "speculator", *AFTER_THE_MODEL}
        changed["speculator_dataset"] = {"reuse": True}
        if action == "drafter_continued":
            changed["speculator"] = {"continue_from_last": True, "step_share": settings.drafter_step_share}
        return Work([*(name for name in every if name in wanted), *facts.named_datasets], models, changed)
    first = stage("preference_model" if action == "preference" else "sft_model").name
    pinned = models[: models.index(first)]
    if action == "sft_continued":
        changed["sft_model"] = {"continue_from_last": True, "replay": settings.replay}
    return Work([*(name for name in every if name not in pinned), *facts.named_datasets], pinned, changed)

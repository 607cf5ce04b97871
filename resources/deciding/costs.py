"""What each action would cost: the seconds of the stages that it makes again, as they were last made.

costs = costs_of(lake, facts, seen, manifests)
costs["full"].seconds          # None: nothing says how long a stage in costs["full"].unknown takes"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from resources.artefacts import Registry
from resources.deciding.decisions import Action, Decision
from resources.deciding.evidence import Evidence, RecipeFacts
from resources.lake import LakeLayout
from resources.launching import seconds_of_steps
from resources.manifests import Manifest
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


WORKERS = {each.name for each in STAGES if each.kind == "model" or each.name in ("speculator_dataset", "evaluation_report")}
"""Stages without whose cost the cost of an action is unknown."""
AROUND_S = 12.0
"""Seconds of a run around its steps: interpreters that start, definitions that load (docs/benchmarks.md, demo)."""
ARTEFACTS = {each.name: each.artefact_name for each in STAGES}
WARM_STARTED = ("speculator", "speculator_dataset", "sft_model")
"""Stages that may go on from their last version, which takes another time."""
NEWEST = 8
"""Versions of such a stage that are looked at."""


@dataclass(frozen=True)
class ActionCost:
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage, as far as they are known."""
    unknown: tuple[str, ...] = ()
    """Stages of a worker that nothing says the seconds of."""

    @property
    def seconds(self) -> float | None:
        return None if self.unknown or not self.stages else sum(self.stages.values())


def costs_of(
    lake: LakeLayout, facts: RecipeFacts, seen: Evidence, manifests: Mapping[str, Manifest]
) -> dict[Action, ActionCost]:
    """The cost of every action that the recipe has."""
    registry = Registry(lake, facts.workload)
    versions = {name: _timed_versions(lake, registry, name, manifests.get(ARTEFACTS[name])) for name in ARTEFACTS}
    absent = {"sft_continued": "sft_model", "preference": "preference_model"}
    actions = [each for each in ACTIONS if each not in absent or absent[each] in facts.policy.stages]
    actions = [each for each in actions if each not in DRAFTERS or facts.policy.speculator]
    return {each: _cost_of(work_of(each, facts, widened=bool(seen.episodes)), versions, facts) for each in actions}


@dataclass(frozen=True)
class TimedVersion:
    seconds: float
    """Of the stage's step, or of the work within it."""
    prompts: int | None
    """Prompts of an evaluation."""
    is_warm_started: bool


def _cost_of(work: Work, versions: Mapping[str, list[TimedVersion]], facts: RecipeFacts) -> ActionCost:
    stages = {
        name: _seconds(name, work.overrides.get(name, {}), versions[name], facts) for name in work.stages if versions.get(name)
    }
    if "base_model" in stages:
        stages["base_model"] = 0.0  # imported again only where its files changed
    unknown = tuple(name for name in work.stages if name in WORKERS and not versions.get(name))
    return ActionCost({**stages, "around the steps": AROUND_S}, unknown)


def _seconds(name: str, changed: Mapping[str, Any], versions: list[TimedVersion], facts: RecipeFacts) -> float:
    """Of the newest version that was made in the same way, else of the newest."""
    warm = bool(changed.get("continue_from_last") or changed.get("reuse"))
    alike = next((each for each in versions if each.is_warm_started == warm), None)
    last = alike or versions[0]
    if alike is None and warm:
        return last.seconds * float(changed.get("step_share", 1.0))
    if name == "evaluation_report" and facts.evaluation_prompts:
        return last.seconds * changed.get("share", 1.0) * facts.evaluation_prompts / (last.prompts or facts.evaluation_prompts)
    return last.seconds


def _timed_versions(lake: LakeLayout, registry: Registry, name: str, current: Manifest | None) -> list[TimedVersion]:
    """Finished versions of a stage that say how long they took, newest first."""
    if current is None:
        return []
    versions = [current]
    if name in WARM_STARTED:
        versions = sorted(registry.versions(current.kind, ARTEFACTS[name]), key=lambda each: each.created_at, reverse=True)
    timed = []
    for each in versions[:NEWEST]:
        step = seconds_of_steps(lake, each.run_id).get(name) if each.run_id else None
        seconds = step if step is not None else each.metrics.get("seconds")
        if isinstance(seconds, int | float):
            warm = any(item.name == each.name for item in each.inputs)
            timed.append(TimedVersion(float(seconds), each.config.get("prompts"), warm))
    return timed

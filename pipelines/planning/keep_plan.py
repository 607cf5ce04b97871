"""Keeps a plan's speed in the lake, where the sensor `decide` takes it as the cost of a stage that was never run.

    lake = lake_to_keep_in(lake_location(path, given), asked=given is not None)     # None where there is none
    said = keep_plan(plan, recipe, "sft", lake)                                     # one sentence, or ""
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from model_ops.planning.memory_plan import Plan
from pipelines.contract.recipe import Recipe
from resources.deciding.kept_plans import KeptPlan, keep
from resources.lake import Lake
from resources.stages import sections
from stores.lake_error import LakeError
from stores.mirror.bucket import Changed
from stores.s3 import S3Error


def lake_to_keep_in(place: Path, asked: bool) -> Lake | None:
    """The lake at a place; None where there is none. asked: whether a person named it: then LakeError is raised."""
    try:
        return Lake.open(place, create=False)
    except LakeError:
        if asked:
            raise
        return None


def keep_plan(plan: Plan, recipe: Recipe, stage: str, lake: Lake | None) -> str:
    """What was done, in a sentence; "" where nothing is kept: there is no lake, or no estimate of speed. stage: section of the
    recipe."""
    if plan.tokens_per_second is None or lake is None:
        return ""
    settings, name = getattr(recipe, stage).resolved(), sections()[stage].artefact_name
    kept = KeptPlan(
        stage=name, tokens_per_second=plan.tokens_per_second, device=plan.device.name, devices=plan.setup.mesh.processes,
        tokens_per_step=settings.tokens_per_step, steps=settings.steps,
        epochs=settings.epochs if settings.steps is None else None, at=datetime.now(UTC).replace(microsecond=0))
    try:
        keep(lake, recipe.workload, kept)
    except S3Error as error:
        return f"not kept: {error}"
    except OSError as error:
        return f"not kept: {lake.place} cannot be written to ({error.strerror})"
    except Changed:
        return f"not kept: another machine keeps a plan of {name} in {lake.place} at this moment"
    return f"kept in {lake.place}: the cost of {name} is predicted by this plan until it was run"

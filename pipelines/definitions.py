"""Everything Dagster knows about a recipe: `pipelines.definitions.NAME` is the graph of recipes/NAME.yaml.

workspace.yaml names one attribute per recipe; `millrace ui` names the recipe's path as the attribute. MILLRACE_RECIPES
(folders or files, separated like PATH) says where else to look; MILLRACE_LAKE says which lake. Importing this module imports
no torch: a test says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from assets import (
    base_model,
    cleaned_interactions,
    curated_interactions,
    endpoint,
    eval_suite,
    evaluation_report,
    interactions,
    judgements,
    logs,
    quantized_model,
    release_candidate,
    seed_examples,
    served_answers,
    sft_dataset,
    sft_model,
    speculator,
    speculator_dataset,
    student_model,
)
from pipelines.contract.recipe import Recipe, load_recipe
from pipelines.graph.clearing import clear_after
from pipelines.graph.days import daily_partitions
from pipelines.graph.jobs import DAILY, jobs
from pipelines.graph.schedules import schedules
from pipelines.graph.sensors import new_logs
from pipelines.graph.wiring import rewired
from pipelines.storage.locations import RECIPES, find_recipe, lake_location
from resources.artefacts.leftovers import kept_seconds
from resources.artefacts.registry import Registry
from resources.lake import Lake
from resources.launching.local_launcher import LocalLauncher
from resources.workshop.workshop import Workshop

MODULES = (
    logs, interactions, cleaned_interactions, judgements, curated_interactions, seed_examples, eval_suite, sft_dataset,
    served_answers, base_model, sft_model, student_model, quantized_model, speculator_dataset, speculator, evaluation_report,
    release_candidate, endpoint,
)


def __getattr__(name: str) -> dg.Definitions:
    if name.startswith("_"):
        raise AttributeError(name)
    path = Path(name) if os.sep in name else find_recipe(name)
    if path is None:
        raise AttributeError(f"pipelines.definitions.{name}: no {name}.yaml in {RECIPES} or in MILLRACE_RECIPES")
    return definitions(path)


def definitions(recipe_path: Path, lake: str | Path | None = None) -> dg.Definitions:
    """The graph of one recipe on one lake: assets, checks, jobs, a schedule and a sensor. Raises RecipeError."""
    recipe = load_recipe(recipe_path)
    place = lake_location(recipe_path, lake)
    assets = [_fitted(asset, recipe, place) for asset in _enabled_assets(recipe)]
    checks = dg.load_asset_checks_from_modules(MODULES, asset_key_prefix=recipe.workload)
    both = jobs(recipe.workload)
    return dg.Definitions(
        assets=assets,
        asset_checks=checks,
        jobs=both,
        schedules=schedules(recipe, *both),
        sensors=[new_logs(recipe, place, both[0])],
        resources=resources(recipe, place),
        executor=dg.in_process_executor,  # one worker stays warm from step to step
    )


def resources(recipe: Recipe, place: Path) -> dict[str, Any]:
    """What the assets plug into. The lake is opened when a run needs it, not when the graph is loaded."""

    def workshop(context: dg.InitResourceContext):
        keep_s = kept_seconds()
        registry = Registry(Lake.open(place), recipe.workload, recipe.digest, context.run_id or "")
        with LocalLauncher() as launcher:
            yield Workshop(registry, launcher, recipe.threads, recipe.tracking)
        everything = {_name(asset) for asset in _enabled_assets(recipe)} - {"logs", *DAILY}
        clear_after(context, registry.lake, recipe.workload, keep_s, everything)

    return {
        "workshop": dg.ResourceDefinition(
            resource_fn=workshop,
            description="The lake and the worker process: makes each artefact once, and reuses it for the same inputs.",
        ),
        **{name: dg.ResourceDefinition.hardcoded_resource(value, description=text)
           for name, (value, text) in recipe_parts(recipe).items()},
    }


def recipe_parts(recipe: Recipe) -> dict[str, tuple[Any, str]]:
    """The parts of a recipe that assets take, by the name they take them by, each with what it is."""
    return {
        "policy": (recipe.policy, "Which stages this recipe has, and from which model each of them starts."),
        "base_name": (recipe.base_model, "The recipe's `base_model`: a Hugging Face id, a directory, or `tiny`."),
        "sources": (recipe.sources, "The recipe's `sources`: where log and feedback files lie, and in which format."),
        "seeds": (recipe.seeds, "The recipe's `seeds`: files of conversations to mix into the traffic."),
        "evals": (recipe.evals, "The recipe's `evals`: files of evaluation items that training rows must not contain."),
        "curation_settings": (recipe.curation, "The recipe's `curation`: rules, duplicates, personal data, judge."),
        "dataset_settings": (recipe.datasets.sft, "The recipe's `datasets.sft`: mix of sources, shares of the splits."),
        "tiny_settings": (recipe.tiny, "The recipe's `tiny`: the base model that is trained on the spot."),
        "sft_settings": (recipe.sft, "The recipe's `sft`: supervised fine-tuning."),
        "student_settings": (recipe.student, "The recipe's `student`: distillation into fewer layers."),
        "quantize_settings": (recipe.quantize, "The recipe's `quantize`: scheme and calibration."),
        "speculator_settings": (recipe.speculator, "The recipe's `speculator`: the drafter and what it learns from."),
        "evaluate_settings": (recipe.evaluation, "The recipe's `evaluation`: rows, prompts, temperatures."),
        "release_settings": (recipe.release, "The recipe's `release`: gates, and who approves."),
    }


def _enabled_assets(recipe: Recipe) -> list[Any]:
    loaded = dg.load_assets_from_modules(MODULES, key_prefix=recipe.workload, include_specs=True)
    return [asset for asset in loaded if _name(asset) not in recipe.disabled]


def _name(asset: Any) -> str:
    return asset.key.path[-1] if isinstance(asset, dg.AssetSpec) else next(iter(asset.keys)).path[-1]


def _fitted(asset: Any, recipe: Recipe, place: Path) -> Any:
    """An asset as this recipe's graph has it: dependencies on switched-off stages rewired or left out, days beginning
    with the recipe's first."""
    if isinstance(asset, dg.AssetSpec):
        return asset.replace_attributes(key=[recipe.workload, *asset.key.path])
    days = daily_partitions(recipe, place)

    def dated(spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(partitions_def=days) if spec.partitions_def is not None else spec

    return rewired(asset.map_asset_specs(dated), lambda spec: _reads(spec, recipe))


def _reads(spec: dg.AssetSpec, recipe: Recipe) -> Iterator[dg.AssetDep]:
    """What an asset of the whole graph reads in this recipe's: the nearest enabled stage stands in for one that is off."""
    for dep in spec.deps:
        name = dep.asset_key.path[-1]
        if name.endswith("_model"):
            read = recipe.policy.read_by(spec.key.path[-1], name)
            if read is not None:
                yield dep if read == name else dg.AssetDep(dg.AssetKey([recipe.workload, read]))
        elif name not in recipe.disabled:
            yield dep

"""The Dagster graph of one recipe on one lake. Imports no torch. `rewired` changes what an asset depends on in the asset graph
and in the execution plan: Dagster's `map_asset_specs` changes the declared dependencies only (1.13, `replace_specs_on_asset`),
so steps would run before their inputs exist."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
from pydantic import BaseModel

from assets.conversations import named_dataset, named_dataset_checks
from assets.presentation import COMPARES
from pipelines.contract import Recipe, load_recipe
from pipelines.graph.decide_sensor import deciding, unchanged_models
from pipelines.graph.form_jobs import decision_jobs, request_jobs
from pipelines.graph.schedules import (
    TRAFFIC_DIGEST,
    TRAIN,
    behind_traffic,
    clear_after,
    daily_partitions,
    dashboard_after,
    freshness_of,
    jobs,
    retention,
    schedules,
)
from pipelines.graph.sensors import alert_sensors, new_logs, release_watch
from pipelines.storage import lake_location
from resources.artefacts import Registry, keep_seconds
from resources.composing import local_tokenizers
from resources.erasing import complete_unfinished
from resources.lake import LakeLayout, at_work
from resources.launching import LocalLauncher
from resources.stages import STAGES, Stage, logs_stages, named_dataset_stage, stage
from resources.workshop import Workshop


def definitions(recipe_path: Path, lake: str | Path | None = None) -> dg.Definitions:
    """The graph of one recipe on one lake: assets, checks, jobs, a schedule and a sensor. Raises RecipeError."""
    recipe = load_recipe(recipe_path)
    place = lake_location(recipe_path, lake)
    assets = recipe_assets(recipe, place)
    checks = _enabled_checks(recipe)
    asked = {name for each in (*assets, *checks) if not isinstance(each, dg.AssetSpec) for name in each.required_resource_keys}
    both = jobs(recipe.workload, recipe.disabled)
    removing, nightly = retention(recipe, place)
    return dg.Definitions(
        assets=assets,
        asset_checks=checks,
        jobs=[*both, *removing, *decision_jobs(recipe, place), *request_jobs(recipe, place)],
        schedules=[*schedules(recipe, *both), *nightly],
        sensors=[
            new_logs(recipe, place, both[0]),
            deciding(recipe, place, both[1]),
            *release_watch(recipe, place),
            *alert_sensors(recipe, place),
        ],
        resources={name: given for name, given in resources(recipe, place).items() if name in asked},
        executor=dg.in_process_executor,  # one worker stays warm from step to step
    )


def recipe_assets(recipe: Recipe, place: Path) -> list[Any]:
    """The assets of a recipe, as they are connected on the lake at `place`."""
    assets = _enabled_assets(recipe)
    reads = {
        spec.key: list(_reads(spec, recipe)) for asset in assets if not isinstance(asset, dg.AssetSpec) for spec in asset.specs
    }
    watching = behind_traffic(recipe.workload, {key: [dep.asset_key for dep in deps] for key, deps in reads.items()})
    digest = dg.AssetDep(dg.AssetKey([recipe.workload, TRAFFIC_DIGEST]))
    reads |= {key: [*reads[key], digest] for key in watching}
    days = daily_partitions(recipe, place)
    return [_fitted(asset, recipe, days, reads) for asset in assets]


def resources(recipe: Recipe, place: Path) -> dict[str, Any]:
    """Dagster resources of the assets. The lake is opened when a run needs it, not when the graph is loaded."""

    def workshop(context: dg.InitResourceContext):
        keep_s = keep_seconds()
        lake = LakeLayout.open(place)
        complete_unfinished(lake)
        registry = Registry(lake, recipe.workload, recipe.digest, context.run_id or "")
        with at_work(lake), LocalLauncher() as launcher:
            yield Workshop(registry, launcher, recipe.threads, recipe.tracking, unchanged_models(context.run))
        everything = {_name(asset) for asset in _enabled_assets(recipe)} - {"logs", *logs_stages()}
        clear_after(context, registry.lake, recipe.workload, keep_s, everything)
        dashboard_after(context, registry.lake, recipe.workload)

    return {
        "workshop": dg.ResourceDefinition(
            resource_fn=workshop,
            description="The lake and the worker process: makes each artefact once, and reuses it for the same inputs.",
        ),
        **{
            name: dg.ResourceDefinition.hardcoded_resource(value, description=text)
            for name, (value, text) in recipe_parts(recipe).items()
        },
    }


def recipe_parts(recipe: Recipe) -> dict[str, tuple[Any, str]]:
    """Parts of a recipe that assets may take as resources: name -> (value, description). The section `drift` is
    `drift_settings`, a dataset `datasets.sft` is `sft_dataset_settings`, keys with named entries have their own name."""
    return {
        **{key if isinstance(value, dict) else f"{key}_settings": (value, text) for key, value, text in _keys(recipe)},
        **{f"{key}_dataset_settings": (value, text) for key, value, text in _keys(recipe.datasets, "datasets.")},
        "policy": (recipe.policy, "The recipe's stages, and which model each starts from."),
        "base_name": (recipe.base_model, "The recipe's `base_model`: a Hugging Face id, a directory, or `tiny`."),
        "base_revision": (recipe.base_revision or "", "The recipe's `base_revision`: of a Hugging Face id."),
        "tokenizers": (_tokenizers(recipe), "Directories with the tokenizers of the recipe's base, teacher and student."),
        "trained_settings": (recipe.trained, "The recipe's sections whose stages train, and their settings."),
        "evaluate_settings": (recipe.evaluate_settings, "The recipe's `evaluation`: rows, prompts, temperatures."),
    }


def _keys(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    for key, field in type(section).model_fields.items():
        yield key, getattr(section, key), f"The recipe's `{prefix}{key}`. {field.description}."


def _tokenizers(recipe: Recipe) -> dict[str, Path]:
    """The tokenizers in which datasets are counted: of models that lie in directories."""
    teacher = recipe.teacher.base if recipe.teacher else None
    return local_tokenizers({"base": recipe.base_model, "teacher": teacher, stage("student_model").role: recipe.student.base})


def asset_of(stage: Stage) -> dg.AssetsDefinition:
    """The asset of a stage, as its file defines it, without a workload's prefix; of a named dataset, with none."""
    return getattr(import_module(f"assets.{stage.file}"), stage.name) if stage in STAGES else named_dataset([], stage.name)


def _modules() -> list[ModuleType]:
    return [import_module(f"assets.{name}") for name in dict.fromkeys(stage.file for stage in STAGES)]


def _enabled_assets(recipe: Recipe) -> list[Any]:
    loaded = dg.load_assets_from_modules(_modules(), key_prefix=recipe.workload, include_specs=True)
    named = [named_dataset([recipe.workload], name) for name in recipe.datasets.named]
    return [*(asset for asset in loaded if _name(asset) not in recipe.disabled), *named]


def _enabled_checks(recipe: Recipe) -> list[dg.AssetChecksDefinition]:
    """The checks of this recipe's assets, without those that compare a model which the recipe does not make."""
    loaded = dg.load_asset_checks_from_modules(_modules(), asset_key_prefix=recipe.workload)
    enabled = [
        check
        for check in loaded
        if not any(
            spec.asset_key.path[-1] in recipe.disabled or spec.metadata.get(COMPARES) in recipe.disabled
            for spec in check.check_specs
        )
    ]
    return [*enabled, *(check for name in recipe.datasets.named for check in named_dataset_checks([recipe.workload], name))]


def _name(asset: Any) -> str:
    return asset.key.path[-1] if isinstance(asset, dg.AssetSpec) else next(iter(asset.keys)).path[-1]


def _fitted(asset: Any, recipe: Recipe, days: dg.PartitionsDefinition, reads: Mapping[dg.AssetKey, list[dg.AssetDep]]) -> Any:
    """Adapts an asset to this recipe: dependencies on disabled stages, partitions from its first day."""
    if isinstance(asset, dg.AssetSpec):
        return asset.replace_attributes(key=[recipe.workload, *asset.key.path], tags=_tags(asset, recipe))

    def dated(spec: dg.AssetSpec) -> dg.AssetSpec:
        dated = {"partitions_def": days} if spec.partitions_def is not None else {}
        freshness_policy = freshness_of(recipe, spec.key.path[-1])
        return spec.replace_attributes(tags=_tags(spec, recipe), freshness_policy=freshness_policy, **dated)

    return rewired(asset.map_asset_specs(dated), lambda spec: reads[spec.key])


def _tags(spec: dg.AssetSpec, recipe: Recipe) -> dict[str, str]:
    """Tags by which the UI finds assets: tag:makes=model, tag:job=train."""
    job = "logs" if spec.key.path[-1] in (*logs_stages(), "logs") else TRAIN
    return {**spec.tags, "workload": recipe.workload, "makes": _stage(spec, recipe).kind, "job": job}


def _reads(spec: dg.AssetSpec, recipe: Recipe) -> Iterator[dg.AssetDep]:
    """Dependencies of an asset in this recipe's graph, by the rule of its stage."""
    reader = _stage(spec, recipe)
    for dep in spec.deps:
        declared = dep.asset_key.path[-1]
        for name in reader.reads(recipe.policy, reader, declared):
            yield dep if name == declared else dg.AssetDep(dg.AssetKey([recipe.workload, name]))


def _stage(spec: dg.AssetSpec, recipe: Recipe) -> Stage:
    name = spec.key.path[-1]
    return named_dataset_stage(name) if name in recipe.datasets.named else stage(name)


def rewired(asset: dg.AssetsDefinition, reads: Callable[[dg.AssetSpec], Iterable[dg.AssetDep]]) -> dg.AssetsDefinition:
    """The asset with `reads(spec)` as the dependencies of each of its specs. Every dependency must be an ordering one
    (`deps=[...]`): values pass by manifest, never as arguments."""
    specs = [spec.replace_attributes(deps=list(reads(spec))) for spec in asset.specs]
    keys = sorted({dep.asset_key for spec in specs for dep in spec.deps})
    inputs = {f"read_{'__'.join(key.path)}".replace("-", "_"): key for key in keys}
    if len(inputs) != len(keys):
        raise ValueError(f"two of {', '.join(key.to_user_string() for key in keys)} have the same name as inputs")
    arguments = [name for name, given in asset.op.ins.items() if not given.dagster_type.is_nothing]
    if arguments:
        raise ValueError(f"{asset.op.name} takes {', '.join(arguments)} as arguments: only deps=[...] can be rewired")
    return dg.AssetsDefinition(
        keys_by_input_name=inputs,
        keys_by_output_name=asset.node_keys_by_output_name,
        node_def=asset.op.with_replaced_properties(name=asset.op.name, ins={name: dg.In(dg.Nothing) for name in inputs}),
        specs=specs,
        can_subset=asset.can_subset,
        resource_defs=asset.resource_defs,
        backfill_policy=asset.backfill_policy,
        hook_defs=asset.hook_defs,
    )

"""A stage that no product file knows: its declaration, its operation's settings with their key in a recipe, its asset.

Run as a program (python -m tests.resources.stages.toy_stage FOLDER), it takes the stage through graph, plan, status, page,
card and erasure, and prints what they say as JSON.
"""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

from resources.stages import table

PLACE = [each.name for each in table.STAGES].index("student_model")
TOY = table.Stage(
    "polished_model",
    "model",
    "models",
    "polish",
    "polish",
    section="polish",
    rows="sft_dataset",
    role="polished",
    takes_model_as="model",
    reads=table.rows_it_learns,
    opt_in=True,
    leaves_out_long_rows=True,
    own_answers="polished.parquet",
    answers_show_text=True,
    gains=True,
    compares_loss=True,
    does="polishes answers",
    hub_relation="finetune",
    card="The model before it, polished.",
)
table.STAGES = (*table.STAGES[:PLACE], TOY, *table.STAGES[PLACE:])  # before anything else of the project reads the table

import dagster as dg  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from pydantic import Field  # noqa: E402

from assets.overrides import TrainingOverrides  # noqa: E402
from assets.presentation import shown  # noqa: E402
from assets.stage_asset import held_out_check, learnt_inputs, stage_asset  # noqa: E402
from model_ops.training import TrainingSettings  # noqa: E402
from pipelines.contract import recipe as contract  # noqa: E402
from resources.stages import ModelPolicy, parent_of  # noqa: E402
from resources.workshop import Workshop  # noqa: E402


class PolishSettings(TrainingSettings):
    """The settings of its operation."""

    enabled: bool = Field(True, description="false: nothing is polished")


class Recipe(contract.Recipe):
    """A recipe that may have the stage's section."""

    polish: PolishSettings | None = Field(None, description="Polishes the fine-tuned model. Left out: none")


contract.Recipe = Recipe


def polished_model(
    context: dg.AssetExecutionContext,
    config: TrainingOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    polish_settings: dg.ResourceParam[PolishSettings],
) -> dg.MaterializeResult:
    """The fine-tuned model, polished."""
    inputs = learnt_inputs(workshop, policy, "polished_model")
    return shown(workshop.train("polished_model", "sft", config.applied_to(polish_settings), inputs, context), workshop)


MODULE = ModuleType("assets.polished_model")
MODULE.polished_model = stage_asset(
    parent_of("polished_model"), "sft_dataset", "served_answers", "length_report", sources=("model_ops/jobs/job.py",)
)(polished_model)
MODULE.check = held_out_check("polished_model")
sys.modules[MODULE.__name__] = MODULE

RECIPE = """
workload: shop
base_model: tiny
sources: {gateway: {uri: logs}}
first_day: 2026-06-01
"""


class Operation:
    """In place of the launcher: writes weights, and a row for each of the model's own answers."""

    def run(self, job, context):
        (job.output / "model.safetensors").write_bytes(b"weights")
        pq.write_table(pa.table({"row_id": ["r1", "r2"], "interaction_ids": [["i1"], ["i2"]]}), job.output / TOY.own_answers)
        return {"steps": 3, "tokens": 30, "tokens_per_second": 3.0, "loss": 1.0, "job": sorted(job.inputs)}


def main(folder: Path) -> dict:
    from pipelines.contract import load_recipe
    from pipelines.graph.recipe_graph import definitions, recipe_assets, recipe_parts
    from pipelines.planning import Speed, TrafficSize, plan_recipe, planned_stage, stage_seconds
    from pipelines.status.lake_status import STEPS
    from resources.artefacts import Registry
    from resources.erasing.artefact_rows import erase_rows, rows_in_artefacts
    from resources.lake import LakeLayout
    from resources.manifests import SAMPLED, WITH_TEXT, read_manifest
    from resources.releasing.gates import GAINING

    (folder / "plain.yaml").write_text(RECIPE)
    (folder / "polished.yaml").write_text(f"{RECIPE}polish: {{epochs: 1}}\n")
    recipe, lake = load_recipe(folder / "polished.yaml"), LakeLayout.open(folder / "lake")
    read = definitions(folder / "polished.yaml", lake.root).resolve_asset_graph()
    parents = {key.path[-1]: [each.path[-1] for each in read.get(key).parent_keys] for key in read.get_all_asset_keys()}
    registry = Registry(lake, "shop")
    for kind, name, op in (("model", "sft_model", "sft"), ("dataset", "sft_dataset", "x"), ("dataset", "served_answers", "x")):
        draft = registry.draft(kind, name, op, ("model_ops/jobs/job.py",), {}, [])
        (draft.directory / "config.json").write_text("{}")
        registry.finish(draft, {})
    key = dg.AssetKey(["shop", TOY.name])
    assets = [each for each in recipe_assets(recipe, lake.root) if not isinstance(each, dg.AssetSpec) and key in each.keys]
    given = {name: value for name, (value, _) in recipe_parts(recipe).items()}
    given["workshop"] = Workshop(Registry(lake, "shop"), Operation(), threads=1)
    [page] = [
        event.step_materialization_data.materialization
        for event in dg.materialize(assets, resources=given).get_asset_materialization_events()
    ]
    model = registry.current("model", TOY.name)
    directory = registry.directory(model)
    [hit] = rows_in_artefacts(lake, SimpleNamespace(derived_ids={"i2"}, seed_ids=set(), sessions=set()))
    erase_rows(hit, SimpleNamespace(derived_ids={"i2"}, seed_ids=set(), sessions=set()), "erasure-1")
    plain = load_recipe(folder / "plain.yaml")
    seconds = stage_seconds(recipe, Speed(100.0, "float32"), TrafficSize(100, 100))
    return {
        "parents": {name: sorted(parents[name]) for name in (TOY.name, "student_model", "evaluation_report")},
        "checks": [key.name for key in read.asset_check_keys if key.asset_key.path[-1] == TOY.name],
        "off": [TOY.name in plain.disabled, plain.policy.source_of("student_model")],
        "compared": recipe.evaluate_settings.compared,
        "planned": planned_stage(recipe, TOY.section),
        "plan": plan_recipe(recipe, "1xH100", TOY.section).needs.method,
        "seconds": seconds[TOY.name] > TOY.fixed_seconds,
        "status": TOY.name in STEPS,
        "gains": TOY.role in GAINING,
        "job": model.metrics["job"],
        "page": page.metadata["in_short"].value,
        "card": (directory / "README.md").read_text(),
        "records": [TOY.own_answers in each for each in (SAMPLED, WITH_TEXT)],
        "left": pq.read_table(directory / TOY.own_answers)["row_id"].to_pylist(),
        "digest_holds": read_manifest(directory).digest == model.digest,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))

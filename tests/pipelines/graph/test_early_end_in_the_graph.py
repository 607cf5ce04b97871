"""Trainings that end early, by the graph's own assets: what is said where, and which versions are made again."""

import pytest
import yaml

from pipelines.contract.recipe import read_recipe
from pipelines.status.lake_status import status_of
from resources.artefacts.registry import Registry
from tests.pipelines.graph.test_second_sft import BARE, QUICK, InProcess, lake, materialized  # noqa: F401

STAGES = ("sft_model", "speculator_dataset", "speculator")
TRAINED = {**QUICK, "steps": 20, "schedule": "wsd"}
SFT_RULE = {"enabled": True, "nats_per_device_hour": 1e6, "trained_tokens_per_second": 100.0}
DRAFTER_RULE = {"enabled": True, "decode_hours_per_day": 1e-6, "trained_tokens_per_second": 100.0}


def recipe_of(folder, sft, drafter):
    speculator = {
        **TRAINED,
        "architecture": "dflash",
        "num_speculative_tokens": 2,
        "early_end": drafter,
        "answers": {"prompts": 20, "max_new_tokens": 16},
    }
    path = folder / "recipe.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                **BARE,
                "sft": {**TRAINED, "early_end": sft},
                "student": {"enabled": False},
                "quantize": {"enabled": False},
                "speculator": speculator,
            }
        )
    )
    return read_recipe(yaml.safe_load(path.read_text()), folder)


@pytest.mark.slow
def test_both_stages_end_early_say_why_everywhere_and_are_made_once(lake, tmp_path):  # noqa: F811
    registry = Registry(lake, "tutor")
    recipe = recipe_of(tmp_path, SFT_RULE, DRAFTER_RULE)
    done = materialized(lake, recipe, STAGES, InProcess())
    assert done.success
    made = {stage: registry.current("model", stage) for stage in ("sft_model", "speculator")}
    shown = {event.asset_key.path[-1]: event.materialization.metadata for event in done.get_asset_materialization_events()}
    seen = {stage.stage: stage.early_end for stage in status_of(lake, None).workloads[0].stages}
    for stage, model in made.items():
        said = model.metrics["early_end"]
        assert model.metrics["steps"] < 20 and said.startswith(f"ended after {model.metrics['steps']} of 20 steps, ")
        assert f"- Training: {said}\n" in (registry.directory(model) / "README.md").read_text()
        assert seen[stage] == said
        assert shown[stage]["early_end"].value == said
    again = materialized(lake, recipe, STAGES, None)  # without a launcher nothing can be trained
    assert again.success and all(registry.current("model", stage) == model for stage, model in made.items())
    off = recipe_of(tmp_path, {"enabled": False}, {"enabled": False})
    assert materialized(lake, off, STAGES, InProcess()).success
    for stage, model in made.items():
        whole = registry.current("model", stage)
        assert whole.version != model.version and whole.metrics["steps"] == 20 and "early_end" not in whole.metrics

"""The section `merge` of a recipe: what it refuses, how its directories are read, what the stage's job takes."""

import json
from pathlib import Path

import dagster as dg
import pytest

from assets import models
from pipelines.contract.recipe import read_recipe
from pipelines.contract.text import RecipeProblemsError
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.workshop.workshop import Workshop

BARE = {"workload": "tutor", "base_model": "tiny", "sources": {"gateway": {"uri": "logs"}}}


def test_nothing_is_merged_unless_the_recipe_says_so(tmp_path):
    assert "merged_model" in read_recipe(BARE, tmp_path).disabled
    merged = read_recipe({**BARE, "merge": {"method": "linear", "weights": [0.7, 0.3]}}, tmp_path)
    assert merged.policy.stages[:4] == ["base_model", "sft_model", "merged_model", "student_model"]
    assert merged.merge.resolved().models == ["sft", "base"]


def test_directories_are_relative_to_the_recipe_and_survive_its_text(tmp_path):
    (tmp_path / "one").mkdir()
    recipe = read_recipe({**BARE, "merge": {"models": ["sft", "./one"]}}, tmp_path)
    assert recipe.merge.models == ["sft", str(tmp_path / "one")]
    assert read_recipe(recipe.as_text(), Path("/")).digest == recipe.digest


@pytest.mark.parametrize(("content", "said"), [
    ({"merge": {"models": ["sft", "./nowhere"]}}, "there is no directory"),
    ({"merge": {"models": ["base", "./one"]}}, "sft is missing, so the fine-tuned model would not be used"),
    ({"merge": {}, "sft": {"enabled": False}}, "it lists sft, and sft.enabled is false"),
    ({"merge": {"method": "ties"}}, "method can only be linear, the weighted mean: run mergekit on the directories"),
    ({"merge": {"method": "dare_ties", "models": ["sft"], "density": 0.5, "seed": 1}}, "and give its result as base_model"),
    ({"merge": {"scale": 0.5, "seed": 1}}, "linear has no scale: leave scale and seed out"),
    ({"merge": {"models": ["sft"]}}, "it holds 1 of at least 2 items"),
])  # fmt: skip
def test_a_merge_that_cannot_be_is_refused_in_one_sentence(tmp_path, content, said):
    (tmp_path / "one").mkdir()
    with pytest.raises(RecipeProblemsError) as refused:
        read_recipe({**BARE, **content}, tmp_path)
    [problem] = refused.value.problems
    assert said in problem.sentence


class Launcher:
    def run(self, job, context):
        (job.output / "given.json").write_text(json.dumps({role: place.parent.name for role, place in job.inputs.items()}))
        return {}


@pytest.mark.parametrize(("content", "inputs"), [
    ({"merge": {}}, {"model": "sft_model", "base": "base_model"}),
    ({"merge": {"models": ["sft", "./one"]}}, {"model": "sft_model"}),
    ({"merge": {"weights": "search"}}, {"model": "sft_model", "base": "base_model", "dataset": "sft_dataset"}),
    ({"merge": {"models": ["base", "./one"]}, "sft": {"enabled": False}}, {"model": "base_model"}),
])  # fmt: skip
def test_the_stage_hands_over_the_models_that_the_recipe_lists(tmp_path, content, inputs):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.json").write_text("{}")
    recipe = read_recipe({**BARE, **content}, tmp_path)
    registry = Registry(LakeLayout.open(tmp_path / "lake"), "tutor")
    for kind, name in (("model", "base_model"), ("model", "sft_model"), ("dataset", "sft_dataset")):
        draft = registry.draft(kind, name, name, ("model_ops/jobs/job.py",), {}, [])
        (draft.directory / "what.txt").write_text(name)
        registry.finish(draft, {})
    resources = {"workshop": Workshop(registry, Launcher(), threads=1), "policy": recipe.policy, "merge_settings": recipe.merge}
    done = dg.materialize([models.merged_model], resources=resources)
    made = registry.current("model", "merged_model")
    assert done.success and json.loads((registry.directory(made) / "given.json").read_text()) == inputs
    outside = [item.name for item in made.inputs if item.kind == "external"]
    assert outside == ([str(tmp_path / "one")] if "./one" in content["merge"].get("models", []) else [])

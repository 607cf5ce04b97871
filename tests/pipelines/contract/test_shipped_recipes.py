"""Every recipe in recipes/: it loads, its graph and its plan of steps are made, its settings pass `millrace check`, without a
network."""

import shutil

import pytest
import yaml

from pipelines.checks.check_recipe import check
from pipelines.contract.recipe import load_recipe
from pipelines.planning.training_plan import PlanError, planned_stage
from pipelines.storage.locations import RECIPES
from resources.stages.table import STAGES, planned_sections
from tests.conftest import PROJECT
from tests.resources.inspecting.test_survey import PAIR, put

NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))
MADE = {
    "demo": ["base_model", "sft_model", "student_model", "quantized_model", "speculator"],
    "mail": ["base_model", "sft_model", "quantized_model", "speculator"],
    "quick": ["base_model", "sft_model", "student_model", "quantized_model", "speculator"],
    "drafter_only": ["base_model", "speculator"],
    "quantize_only": ["base_model", "quantized_model"],
    "distil_only": ["base_model", "student_model"],
    "finetune_only": ["base_model", "sft_model"],
    "taught": ["base_model", "sft_model"],
    "merged": ["base_model", "sft_model", "merged_model"],
    "preferences": ["base_model", "sft_model", "preference_model", "merged_model"],
    "rft": ["base_model", "sft_model", "rft_model"],
    "rft-tools": ["base_model", "sft_model", "rft_model"],
    "r1-distill": ["base_model", "rft_model", "student_model"],
    "models_only": ["base_model", "sft_model", "quantized_model", "speculator"],
}


@pytest.fixture
def recipe_file(tmp_path):
    def path_of(name):
        """The recipe's file; without the model that only the demo fetches."""
        if name != "mail":
            return RECIPES / f"{name}.yaml"
        text = (RECIPES / "mail.yaml").read_text()
        (tmp_path / "mail.yaml").write_text(text.replace("../demo/model/SmolLM2-135M-Instruct.Q4_1.gguf", "tiny"))
        return tmp_path / "mail.yaml"

    return path_of


def test_every_recipe_is_under_test_and_in_the_documentation():
    readme = (PROJECT / "docs" / "recipes.md").read_text()
    assert sorted(MADE) == NAMES
    assert [name for name in NAMES if f"recipes/{name}.yaml" not in readme] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_s_graph_makes_the_models_that_its_comment_promises(name, tmp_path, recipe_file):
    from dagster._core.execution.api import create_execution_plan

    from pipelines.graph.recipe_graph import definitions

    graph = definitions(recipe_file(name), tmp_path / "lake")
    keys = {key.path[-1] for key in graph.resolve_asset_graph().get_all_asset_keys()}
    models = [found.name for found in STAGES if found.kind == "model"]
    assert [model for model in models if model in keys] == MADE[name]
    assert ("release_candidate" in keys) == ("endpoint" in keys) == (name != "models_only")
    steps = {step.key.split("__")[-1] for step in create_execution_plan(graph.resolve_job_def("train")).steps}
    assert steps >= set(MADE[name]) | {"length_report", "evaluation_report"}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_s_settings_pass_the_check(name, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_USER", "ana")
    put(tmp_path / "logs" / "2026-06-01.jsonl", PAIR)
    content = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    for gone in ("seeds", "evals", "datasets", "first_day", "last_day"):
        content.pop(gone, None)  # name the demo's traffic
    if "preference" in content:
        content["datasets"] = {"preference": {}}
    if "rft" in content:
        content["datasets"] = {"rl_prompts": {}}
    for file in RECIPES.glob("*.py"):
        shutil.copy(file, tmp_path)
    content |= {"base_model": "tiny", "sources": {"gateway": {"uri": "logs"}}}
    if name == "drafter_only":  # the toy has fewer positions than the model that the recipe names
        content["speculator"]["max_length"] = 2_048
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    report = check(tmp_path / "recipe.yaml", tmp_path / "lake", plan=False)
    unreachable = "teacher" if "teacher" in content else None  # no server runs at the address that the recipe names
    assert [finding for finding in report.findings if finding.state == "problem" and finding.check != unreachable] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_stage_to_plan_is_one_that_the_recipe_trains(name, recipe_file):
    recipe = load_recipe(recipe_file(name))
    trained = [section for section in planned_sections() if planned_sections()[section].name in MADE[name]]
    if trained:
        assert planned_stage(recipe, None) == trained[0]
    else:
        with pytest.raises(PlanError, match="this recipe switches off sft and student"):
            planned_stage(recipe, None)
    for off in set(planned_sections()) - set(trained):
        with pytest.raises(PlanError, match=f"switches it off \\({off}.enabled\\)|this recipe has no {off};"):
            planned_stage(recipe, off)

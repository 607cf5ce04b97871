"""The stage preference_model where the model answers prompts while it trains: what a recipe says, what the stage reads, and the
graph's own asset on a tiny model."""

import json

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.contract.recipe import read_recipe
from pipelines.contract.text import RecipeProblemsError
from pipelines.graph.recipe_graph import definitions
from resources.artefacts.registry import Registry
from resources.catalog.catalog import query
from resources.manifests.manifest import external_input
from tests.pipelines.graph.test_preference_stage import materialized
from tests.pipelines.graph.test_second_sft import BARE, QUICK, InProcess, lake  # noqa: F401

PROMPTS = {**BARE, "datasets": {"rl_prompts": {}}, "preference": {"on_policy": {"prompts": "rl_prompts", "grader": "verifier"}}}
BOTH = {"preference": {}, "rl_prompts": {}}


@pytest.mark.parametrize(
    ("changes", "read"),
    [
        ({}, {"rl_prompts"}),
        ({"datasets": BOTH}, {"rl_prompts", "preference_dataset"}),
        ({"datasets": BOTH, "preference": {"on_policy": {"grader": "number"}}}, {"preference_dataset"}),
        ({"datasets": BOTH, "preference": {}}, {"preference_dataset"}),
    ],
)
def test_the_stage_reads_the_prompts_that_its_model_answers_and_pairs_to_validate_with(tmp_path, changes, read):
    path = tmp_path / "recipe.yaml"
    recipe = read_recipe({**PROMPTS, **changes}, tmp_path)
    path.write_text(json.dumps({**json.loads(recipe.as_text()), "first_day": "2026-06-01"}))
    graph = definitions(path, tmp_path / "lake").resolve_asset_graph()
    parents = {parent.path[-1] for parent in graph.get(dg.AssetKey(["tutor", "preference_model"])).parent_keys}
    assert parents == {"sft_model", "length_report", "traffic_digest"} | read
    lengths = {parent.path[-1] for parent in graph.get(dg.AssetKey(["tutor", "length_report"])).parent_keys}
    assert not lengths & {"rl_prompts", "preference_dataset"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"datasets": {"preference": {}}}, "it learns rl_prompts, which is not made: give datasets.rl_prompts"),
        ({"preference": {"on_policy": {"prompts": "rl_prompts"}}}, "is missing; preference.on_policy needs it"),
        ({"preference": {"on_policy": {"prompts": "rl_prompts", "grader": "absent.py:grade"}}}, "there is no file"),
        (
            {"datasets": BOTH, "preference": {"on_policy": {"grader": "verifier"}}},
            "the prompts are those of preference_dataset: set prompts to",
        ),
        ({"preference": {"on_policy": {"prompts": "rl_prompts", "grader": "numbre"}}}, "no grader is called so"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_in_one_sentence(tmp_path, changes, said):
    with pytest.raises(RecipeProblemsError) as refused:
        read_recipe({**PROMPTS, **changes}, tmp_path)
    [problem] = refused.value.problems
    assert said in problem.sentence


def test_a_function_s_file_is_relative_to_the_recipe_and_counts_by_its_content(tmp_path):
    (tmp_path / "rewards.py").write_text("def grade(answer):\n    return 1\n")
    for grader in ("rewards.py:grade", {"parts": {"mine": {"by": "rewards.py:grade"}, "brief": {"by": "length"}}}):
        recipe = read_recipe({**PROMPTS, "preference": {"on_policy": {"prompts": "rl_prompts", "grader": grader}}}, tmp_path)
        elsewhere = read_recipe(json.loads(recipe.as_text()), tmp_path / "elsewhere")
        assert elsewhere.preference.on_policy.grader.files == [str(tmp_path / "rewards.py")]
    before = external_input(str(tmp_path / "rewards.py"))
    (tmp_path / "rewards.py").write_text("def grade(answer):\n    return 2\n")
    assert external_input(str(tmp_path / "rewards.py")).digest != before.digest


def prompts(registry, count):
    draft = registry.draft("dataset", "rl_prompts", "build_rl_prompts", ("model_ops/jobs/job.py",), {"n": count}, [])
    rows = [
        {
            "row_id": f"p{i}",
            "interaction_ids": [f"i{i}"],
            "messages": json.dumps([{"role": "user", "content": f"write add_{i}"}]),
            "verifier": json.dumps({"kind": "regex", "pattern": "[aeiou]"}),
        }
        for i in range(count)
    ]
    pq.write_table(pa.Table.from_pylist(rows), draft.directory / "train.parquet")
    registry.finish(draft, {"rows": {"train": count}})


@pytest.mark.slow
def test_the_graph_s_model_answers_goes_on_after_a_stop_and_its_answers_are_rows_of_sql(lake, tmp_path):  # noqa: F811
    (tmp_path / "rewards.py").write_text("def grade(answer, columns):\n    return len(answer) + ('a' in answer)\n")
    sampling = {"prompts": "rl_prompts", "prompts_per_step": 4, "sync_steps": 2, "max_new_tokens": 32}
    graders = {"parts": {"long": {"by": f"{tmp_path}/rewards.py:grade"}, "brief": {"by": "length", "weight": 0.1}}}
    preference = {**QUICK, "learning_rate": 1e-3, "on_policy": {**sampling, "grader": graders}}
    recipe, registry = read_recipe({**PROMPTS, "sft": QUICK, "preference": preference}, tmp_path), Registry(lake, "tutor")
    prompts(registry, 16)
    assert materialized(lake, recipe, ("sft_model",), InProcess()).success
    assert not materialized(lake, recipe, ("preference_model",), InProcess(stop_at=3)).success
    assert materialized(lake, recipe, ("preference_model",), InProcess()).success
    made = registry.current("model", "preference_model")
    assert made.metrics["sampled_answers"] == 4 * made.metrics["sampled_prompts"] > 0
    assert {str(tmp_path / "rewards.py")} <= {item.name for item in made.inputs}
    rows = query(lake, "select side, parts['long'] as long, interaction_ids from sampled_answers").to_pylist()
    assert len(rows) == made.metrics["sampled_answers"] and {row["side"] for row in rows} >= {"chosen", "rejected"}
    assert all(row["interaction_ids"][0].startswith("i") for row in rows)

"""A second stage of fine-tuning: what a recipe says, and both stages by the graph's own assets on a tiny model."""

import json
from importlib import import_module

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from model_ops.jobs import Progress
from model_ops.operations.tiny_base import new_model, train_tokenizer
from model_ops.operations.tiny_base_settings import TinyBaseSettings
from pipelines.contract.recipe import read_recipe
from pipelines.contract.text import RecipeProblemsError
from pipelines.graph.recipe_graph import definitions, recipe_assets, recipe_parts
from pipelines.status.planned_versions import planned_versions
from resources.artefacts.registry import Registry
from resources.composing.held_out import datasets_behind
from resources.composing.served_answers import SERVED
from resources.lake.lake import LakeLayout
from resources.workshop.workshop import Workshop
from tests.model_ops.stop_after import StopAfter

BARE = {"workload": "tutor", "base_model": "tiny", "sources": {"gateway": {"uri": "logs"}}}
BEST = {**BARE, "datasets": {"named": {"best": {"min_feedback": 1}}}}
QUICK = {
    "steps": 6,
    "learning_rate": 3e-2,
    "tokens_per_step": 256,
    "max_length": 128,
    "precision": "float32",
    "checkpoint_every": 2,
}
STAGED = {
    **BEST,
    "sft": QUICK,
    "second_sft": {**QUICK, "dataset": "best", "learning_rate": 1e-2, "method": "lora", "lora": {"rank": 2}},
}


def refusals(tmp_path, content):
    with pytest.raises(RecipeProblemsError) as refused:
        read_recipe({**BEST, **content}, tmp_path)
    return [problem.sentence for problem in refused.value.problems]


def test_the_second_stage_stands_between_the_first_and_what_follows(tmp_path):
    policy = read_recipe({**BEST, "second_sft": {"dataset": "best"}, "merge": {}}, tmp_path).policy
    assert policy.stages[:4] == ["base_model", "sft_model", "second_sft_model", "merged_model"]
    assert policy.rows_of("sft_model") == "sft_dataset" and policy.rows_of("second_sft_model") == "best"
    assert policy.source_of("merged_model") == "second_sft_model" and policy.named_datasets == ["best"]
    one_stage = read_recipe(BARE, tmp_path)
    assert "second_sft_model" in one_stage.disabled and one_stage.policy.source_of("student_model") == "sft_model"
    off = read_recipe({**BARE, "second_sft": {"enabled": False}}, tmp_path)
    assert off.policy.stages == one_stage.policy.stages


def test_a_teacher_of_both_teaches_the_first_stage_and_the_student(tmp_path):
    teacher = {"base_url": "http://localhost:1/v1", "model": "big", "licence": "mit", "trains": "both"}
    policy = read_recipe({**BEST, "teacher": teacher, "second_sft": {"dataset": "best"}}, tmp_path).policy
    assert policy.taught == {"sft_model", "student_model"} and policy.rows_of("second_sft_model") == "best"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"second_sft": {"dataset": "bst"}}, "there is no dataset bst under datasets.named; there is best"),
        ({"second_sft": {}, "sft": {"enabled": False}}, "move these settings to sft, or enable sft"),
        (
            {"second_sft": {"reasoning_budget": 9}, "datasets": {"sft": {"thinking": "strip"}, "named": {"best": {}}}},
            "datasets.sft.thinking is strip, which leaves no reasoning",
        ),
    ],
)
def test_a_second_stage_that_cannot_be_is_refused_in_one_sentence(tmp_path, content, said):
    [sentence] = refusals(tmp_path, content)
    assert said in sentence


def test_a_reasoning_budget_closes_reasoning_before_the_length_report_calls_a_row_too_long(tmp_path):
    from model_ops.evaluation.settings import EvaluateSettings
    from resources.releases import ReleaseSettings
    from resources.workshop.training_job import length_limits

    content = {**BARE, "sft": {"overflow": "drop"}, "second_sft": {"overflow": "drop", "reasoning_budget": 100}}
    limits = length_limits(read_recipe(content, tmp_path).trained, EvaluateSettings(), ReleaseSettings()).training
    assert (limits["sft"].overflow, limits["second_sft"].overflow) == ("drop", "truncate")


def test_the_graph_reads_the_dataset_that_the_stage_names(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({**STAGED, "first_day": "2026-06-01"}))
    graph = definitions(path, tmp_path / "lake").resolve_asset_graph()
    key = dg.AssetKey(["tutor", "second_sft_model"])
    expected = {"sft_model", "best", "served_answers", "length_report", "traffic_digest"}
    assert {parent.path[-1] for parent in graph.get(key).parent_keys} == expected
    assert dg.AssetKey(["tutor", "second_sft_model"]) in graph.get(dg.AssetKey(["tutor", "student_model"])).parent_keys


class InProcess:
    """Runs the real operation in this process; asks it to stop at a step where told to."""

    def __init__(self, stop_at=None):
        self.stop_at = stop_at

    def run(self, job, context):
        progress = Progress() if self.stop_at is None else StopAfter(self.stop_at)
        return import_module(f"model_ops.operations.{job.operation}").run(job, progress)


def chat(number):
    said = f"def add_{number}(a, b):\n    return a + b * {number}\n"
    return [{"role": "user", "content": f"write add_{number}"}, {"role": "assistant", "content": said}]


def dataset(registry, name, train, held):
    draft = registry.draft("dataset", name, name, ("model_ops/jobs/job.py",), {"train": train, "held": held}, [])
    for split, numbers in (("train", train), ("validation", held)):
        columns = {
            "row_id": [f"row-{number}" for number in numbers],
            "origin": ["interaction"] * len(numbers),
            "session_id": [f"s{number}" for number in numbers],
            "messages": [json.dumps(chat(number)) for number in numbers],
            "tools": pa.array([None] * len(numbers), pa.string()),
            "interaction_ids": [[f"row-{number}"] for number in numbers],
            "content_sha256": [f"content-{number}" for number in numbers],
        }
        pq.write_table(pa.table(columns), draft.directory / f"{split}.parquet")
    return registry.finish(draft, {})


@pytest.fixture
def lake(tmp_path):
    """A lake with a base model and datasets, before the first stage of training."""
    from model_ops.models.model_directory import save_model

    lake = LakeLayout.open(tmp_path / "lake")
    registry = Registry(lake, "tutor")
    settings = TinyBaseSettings(
        vocab_size=512, hidden_size=32, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_size=48, max_position_embeddings=256
    )
    tokenizer = train_tokenizer([message["content"] for number in range(40) for message in chat(number)], settings)
    draft = registry.draft("model", "base_model", "tiny_base", ("model_ops/jobs/job.py",), {}, [])
    save_model(new_model(settings, tokenizer), tokenizer, draft.directory)
    registry.finish(draft, {})
    dataset(registry, "sft_dataset", list(range(20)), list(range(20, 26)))
    dataset(registry, "best", [1, 3, 5], list(range(20, 26)))
    draft = registry.draft("dataset", "served_answers", "build_served_answers", ("model_ops/jobs/job.py",), {}, [])
    pq.write_table(SERVED.empty_table(), draft.directory / "served.parquet")
    registry.finish(draft, {})
    return lake


def materialized(lake, recipe, names, launcher):
    """The graph's own assets of these names and their checks, in one run."""
    from assets import models

    chosen = [
        asset
        for asset in recipe_assets(recipe, lake.root)
        if not isinstance(asset, dg.AssetSpec) and next(iter(asset.keys)).path[-1] in names
    ]
    loaded = dg.load_asset_checks_from_modules([models], asset_key_prefix="tutor")
    checks = [check for check in loaded if any(key.asset_key.path[-1] in names for key in check.check_keys)]
    resources = {name: value for name, (value, _) in recipe_parts(recipe).items()}
    workshop = Workshop(Registry(lake, "tutor"), launcher, threads=1)
    return dg.materialize([*chosen, *checks], resources={**resources, "workshop": workshop}, raise_on_error=False)


@pytest.mark.slow
def test_stage_two_goes_on_from_stage_one_survives_a_kill_and_names_both_datasets(lake, tmp_path):
    recipe, registry = read_recipe(STAGED, tmp_path), Registry(lake, "tutor")
    assert materialized(lake, recipe, ("sft_model",), InProcess()).success
    first = registry.current("model", "sft_model")
    assert not materialized(lake, recipe, ("second_sft_model",), InProcess(stop_at=4)).success
    done = materialized(lake, recipe, ("sft_model", "second_sft_model"), InProcess())
    assert done.success and registry.current("model", "sft_model") == first  # stage one is not trained again
    second = registry.current("model", "second_sft_model")
    assert {item.name for item in second.inputs} == {"tutor/sft_model", "tutor/best", "tutor/served_answers"}
    assert {place.parent.name for place in datasets_behind(lake, second)} == {"sft_dataset", "best", "served_answers"}
    begun, ended = (load_file(registry.directory(each) / "model.safetensors") for each in (first, second))
    adapter = json.loads((registry.directory(second) / "adapter" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == str(registry.directory(first))
    assert begun["model.norm.weight"].equal(ended["model.norm.weight"]), (
        "LoRA on stage one's weights leaves its norms as they are"
    )
    assert not begun["model.layers.0.mlp.up_proj.weight"].equal(ended["model.layers.0.mlp.up_proj.weight"])
    steps = [json.loads(line) for line in (registry.directory(second) / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert planned_versions(recipe, lake, lambda *_: "")["second_sft_model"].version == second.version


def test_a_row_that_the_later_dataset_trains_on_and_the_first_one_held_out_blocks(lake, tmp_path):
    dataset(Registry(lake, "tutor"), "best", [1, 3, 21], [22])
    done = materialized(lake, read_recipe(STAGED, tmp_path), ("sft_model", "second_sft_model"), InProcess())
    [found] = [each for each in done.get_asset_check_evaluations() if each.asset_key.path[-1] == "second_sft_model"]
    assert not found.passed and "tutor/best" in found.description and "row-21" in found.description

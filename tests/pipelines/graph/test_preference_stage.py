"""The stages preference_model and rft_model: what a recipe says, every choice of stages around it, and the graph's own assets on a tiny model."""

import itertools
import json

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from pipelines.contract.recipe import read_recipe
from pipelines.contract.text import RecipeProblemsError
from pipelines.graph.recipe_graph import asset_of, definitions, recipe_assets, recipe_parts
from pipelines.planning.training_plan import plan_recipe, planned_stage
from pipelines.status.planned_versions import planned_versions
from resources.artefacts.registry import Registry
from resources.stages.table import STAGES, artefact_stages
from resources.workshop.workshop import Workshop
from tests.pipelines.graph.test_second_sft import BARE, QUICK, InProcess, chat, lake  # noqa: F401

PREFERS = {**BARE, "datasets": {"preference": {}}, "preference": {}}
OPTIONAL = ("sft", "second_sft", "preference", "rft", "merge", "student", "quantize", "speculator")


def recipe_with(tmp_path, on):
    """The recipe of some of the optional stages; a merge without a stage before it merges directories."""
    (tmp_path / "one").mkdir(exist_ok=True)
    content = {**BARE, "datasets": {"preference": {}, "rl_prompts": {}}, "release": {"enabled": bool(on)}}
    for name in OPTIONAL:
        content[name] = {"enabled": name in on} if name != "merge" else {}
    content["rft"]["grader"] = "verifier"
    if "merge" not in on:
        del content["merge"]
    elif not {"sft", "preference", "rft"} & on:
        content["merge"] = {"models": ["base", "./one"]}
    return read_recipe(content, tmp_path)


CHOICES = [frozenset(names) for count in range(len(OPTIONAL) + 1) for names in itertools.combinations(OPTIONAL, count)]


@pytest.mark.parametrize("sft", [True, False])
def test_every_choice_of_stages_reads_what_it_makes_and_each_model_starts_from_the_one_before(tmp_path, sft):
    reads = [(line, dep.asset_key.path[-1]) for line in artefact_stages() for spec in asset_of(line).specs for dep in spec.deps]
    built = 0
    for on in CHOICES:
        if ("sft" in on) != sft or ("second_sft" in on and not sft) or not on - {"speculator"}:
            continue
        policy = recipe_with(tmp_path, on).policy
        made = {found.name for found in STAGES} - set(policy.disabled)
        expected = [name in on for name in ("preference", "rft")]
        assert [f"{name}_model" in policy.stages for name in ("preference", "rft")] == expected
        for reader, declared in reads:
            if reader.name in made:
                assert set(reader.reads(policy, reader, declared)) <= made, (sorted(on), reader.name, declared)
        for before, name in itertools.pairwise(policy.stages):
            assert policy.source_of(name) == before
        built += 1
    assert built == (128 if sft else 62)


@pytest.mark.parametrize(
    "on",
    [
        {"sft", "preference", "merge"},
        {"preference", "merge", "speculator"},
        {"sft", "second_sft", "preference", "student", "quantize"},
        {"sft", "preference", "rft", "merge"},
        {"rft", "merge", "quantize"},
    ],
    ids=sorted,
)
def test_choices_of_stages_build_a_graph(tmp_path, on):
    path = tmp_path / "recipe.yaml"
    recipe = recipe_with(tmp_path, frozenset(on))
    path.write_text(json.dumps({**json.loads(recipe.as_text()), "first_day": "2026-06-01"}))
    graph = definitions(path, tmp_path / "lake").resolve_asset_graph()

    def reads(name):
        return {parent.path[-1] for parent in graph.get(dg.AssetKey(["tutor", name])).parent_keys}

    learnt = {"preference": "preference_dataset", "rft": "rl_prompts"}
    for name in on & learnt.keys():
        began = recipe.policy.source_of(f"{name}_model")
        assert reads(f"{name}_model") == {began, learnt[name], "length_report", "traffic_digest"}
        assert "merge" not in on or {f"{name}_model", began} <= reads("merged_model")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            {"datasets": {}},
            "it learns preference_dataset, which is not made: give datasets.preference, or leave preference out",
        ),
        (
            {"merge": {"models": ["sft", "base"]}},
            "preference is missing, so the model trained on preferences would not be used",
        ),
        (
            {"preference": None, "merge": {"models": ["preference", "sft"]}},
            "it lists preference, and preference.enabled is false; take preference out, or enable preference",
        ),
        ({"preference": {"loss": "dppo"}}, "there is no loss dppo; there are dpo, ipo"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_in_one_sentence(tmp_path, content, said):
    with pytest.raises(RecipeProblemsError) as refused:
        read_recipe({key: value for key, value in {**PREFERS, **content}.items() if value is not None}, tmp_path)
    [problem] = refused.value.problems
    assert said in problem.sentence


def test_a_merge_that_lists_nothing_merges_the_preferred_model_with_the_one_that_it_began_from(tmp_path):
    def listed(**more):
        return read_recipe({**PREFERS, **more}, tmp_path).merge.models

    assert listed(merge={}) == ["preference", "sft"]
    assert listed(merge={}, sft={"enabled": False}) == ["preference", "base"]
    again = read_recipe(json.loads(read_recipe({**PREFERS, "merge": {}}, tmp_path).as_text()), tmp_path)
    assert again.merge.models == ["preference", "sft"]


def test_plan_takes_the_stage_and_lengths_of_conversations_leave_it_out(tmp_path):
    from model_ops.evaluation.settings import EvaluateSettings
    from resources.releases import ReleaseSettings
    from resources.workshop.training_job import length_limits

    recipe = read_recipe({**PREFERS, "preference": {"method": "lora", "max_length": 512}}, tmp_path)
    assert planned_stage(recipe, "preference") == "preference" and planned_stage(recipe, None) == "sft"
    assert plan_recipe(recipe, "1xH100", "preference").needs.method == "lora"
    assert list(length_limits(recipe.trained, EvaluateSettings(), ReleaseSettings()).training) == ["sft", "student"]


def preferences(registry, train, held):
    draft = registry.draft(
        "dataset", "preference_dataset", "build_preferences", ("model_ops/jobs/job.py",), {"n": len(train)}, []
    )
    for split, numbers in (("train", train), ("validation", held)):
        columns = {
            "row_id": [f"pair-{number}" for number in numbers],
            "interaction_ids": [[f"row-{number}"] for number in numbers],
            "content_sha256": [f"pair-content-{number}" for number in numbers],
            "prompt": [json.dumps(chat(number)[:1]) for number in numbers],
            "tools": pa.array([None] * len(numbers), pa.string()),
            "chosen": [json.dumps(chat(number)[1:]) for number in numbers],
            "rejected": [json.dumps([{"role": "assistant", "content": f"no add_{number}"}]) for number in numbers],
        }
        pq.write_table(pa.table(columns), draft.directory / f"{split}.parquet")
    return registry.finish(draft, {})


CHOSEN = {
    **PREFERS,
    "sft": QUICK,
    "preference": {**QUICK, "learning_rate": 1e-2, "loss": [{"dpo": 0.8}, {"sft": 0.2}]},
    "merge": {"models": ["preference", "sft"], "weights": [0.5, 0.5]},
}


def materialized(lake, recipe, names, launcher):  # noqa: F811
    from assets import models

    chosen = [
        asset
        for asset in recipe_assets(recipe, lake.root)
        if not isinstance(asset, dg.AssetSpec) and next(iter(asset.keys)).path[-1] in names
    ]
    checks = dg.load_asset_checks_from_modules([models], asset_key_prefix="tutor")
    resources = {name: value for name, (value, _) in recipe_parts(recipe).items()}
    workshop = Workshop(Registry(lake, "tutor"), launcher, threads=1)
    mine = [
        check for check in checks if {key.asset_key.path[-1] for key in check.check_keys} & {"preference_model"} & set(names)
    ]
    return dg.materialize([*chosen, *mine], resources={**resources, "workshop": workshop}, raise_on_error=False)


@pytest.mark.slow
def test_the_stage_goes_on_from_the_fine_tuned_model_survives_a_kill_and_is_merged_with_it(lake, tmp_path):  # noqa: F811
    recipe, registry = read_recipe(CHOSEN, tmp_path), Registry(lake, "tutor")
    preferences(registry, list(range(20)), list(range(20, 26)))
    assert materialized(lake, recipe, ("sft_model",), InProcess()).success
    assert not materialized(lake, recipe, ("preference_model",), InProcess(stop_at=4)).success
    assert materialized(lake, recipe, ("preference_model", "merged_model"), InProcess()).success
    found = {name: registry.current("model", name) for name in ("sft_model", "preference_model", "merged_model")}
    assert {item.name for item in found["preference_model"].inputs} == {"tutor/sft_model", "tutor/preference_dataset"}
    assert {item.name for item in found["merged_model"].inputs} == {"tutor/sft_model", "tutor/preference_model"}
    begun, preferred, merged = (load_file(registry.directory(each) / "model.safetensors") for each in found.values())
    name = "model.layers.0.mlp.up_proj.weight"
    assert not begun[name].equal(preferred[name])
    assert merged[name].float().sub((begun[name].float() + preferred[name].float()) / 2).abs().max() < 1e-2
    directory = registry.directory(found["preference_model"])
    steps = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6] and steps[-1]["margin"] > steps[0]["margin"] == 0
    card = (directory / "README.md").read_text()
    assert "log-probability of chosen answers may have fallen" in card and "validation accuracy" in card
    assert planned_versions(recipe, lake, lambda *_: "")["preference_model"].version == found["preference_model"].version


def test_a_pair_that_fine_tuning_held_out_blocks(lake, tmp_path):  # noqa: F811
    recipe, registry = read_recipe(CHOSEN, tmp_path), Registry(lake, "tutor")
    preferences(registry, [1, 3, 21], [22])
    done = materialized(lake, recipe, ("sft_model", "preference_model"), InProcess())
    [found] = [each for each in done.get_asset_check_evaluations() if each.asset_key.path[-1] == "preference_model"]
    assert not found.passed and "tutor/preference_dataset" in found.description and "pair-21" in found.description

"""The graph as Dagster sees it: loaded without torch, explicit, rewired where a recipe switches a stage off."""

import json
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml

from tests.golden.graph.dump import GOLDEN

PROJECT = Path(__file__).resolve().parents[3]
SMALLEST = "workload: math-tutor\nbase_model: tiny\nsources: {gateway: {uri: logs/}}\nfirst_day: 2026-06-01\n"

GRAPH = {name: set(asset["reads"]) for name, asset in json.loads(GOLDEN.read_text())["smallest"]["assets"].items()}
"""What each asset of the smallest recipe reads; test_golden_graph.py compares the graph itself."""


def load(tmp_path, more="", base="tiny"):
    from pipelines.graph.recipe_graph import definitions

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(SMALLEST.replace("tiny", base) + more)
    return definitions(recipe, tmp_path / "lake")


def edges(graph: dg.Definitions) -> dict[str, set[str]]:
    asset_graph = graph.resolve_asset_graph()
    return {
        key.path[-1]: {parent.path[-1] for parent in asset_graph.get(key).parent_keys}
        for key in asset_graph.get_all_asset_keys()
    }


def test_importing_the_definitions_imports_nothing_heavy():
    heavy = ["torch", "transformers", "ray", "vllm", "jsonschema"]
    script = (
        "import sys, json, pipelines.definitions as d; d.demo; "
        f"print(json.dumps([name for name in {heavy!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_named_datasets_are_in_the_graph_and_a_stage_trains_on_the_one_it_names(tmp_path):
    named = "datasets: {named: {best: {max_rows: 10}, spare: {}}}\nsft: {dataset: best}\n"
    found, made_of = edges(load(tmp_path, named)), {"curated_interactions", "seed_examples", "sft_dataset", "traffic_digest"}
    assert found == GRAPH | {
        "best": made_of,
        "spare": made_of,
        "sft_model": {"base_model", "best", "served_answers", "length_report", "traffic_digest"},
        "served_answers": {"sft_dataset", "best", "interactions", "traffic_digest"},
    }
    checks = {(key.asset_key.path[-1], key.name) for key in load(tmp_path, named).resolve_asset_graph().asset_check_keys}
    assert {("best", "no_session_in_two_splits"), ("best", "nothing_held_out_is_in_training")} < checks


def test_keys_carry_the_workload_and_every_asset_says_what_it_is(tmp_path):
    graph = load(tmp_path).resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert key.path[0] == "math-tutor"
        assert node.description
        assert node.owners
        assert node.group_name != "default"
        assert node.kinds
        if node.is_executable:
            assert node.code_version


def described(tmp_path):
    """Everything that the UI shows with a description: kind and name -> description."""
    graph = load(tmp_path, 'curation: {judge: {base_url: "http://localhost:8000/v1", model: big}, min_quality: 4}\n')
    repository, asset_graph = graph.get_repository_def(), graph.resolve_asset_graph()
    found = {f"asset {key.path[-1]}": asset_graph.get(key).description for key in asset_graph.get_all_asset_keys()}
    for checks in repository.asset_checks_defs_by_key.values():
        found |= {f"check {spec.name}": spec.description for spec in checks.check_specs}
    found |= {f"job {job.name}": job.description for job in repository.get_all_jobs() if not job.name.startswith("__")}
    found |= {f"schedule {schedule.name}": schedule.description for schedule in repository.schedule_defs}
    found |= {f"sensor {sensor.name}": sensor.description for sensor in repository.sensor_defs}
    found |= {f"resource {name}": resource.description for name, resource in graph.resources.items()}
    for definition in {asset.op for asset in repository.assets_defs_by_key.values() if asset.is_executable}:
        fields = getattr(definition.config_schema.config_type, "fields", {})
        found |= {f"config {definition.name}.{name}": field.description for name, field in fields.items()}
    return found


def test_everything_in_the_ui_has_a_description(tmp_path):
    found = described(tmp_path)
    kinds = [name.split()[0] for name in found]
    expected = {"asset": 22, "check": 11, "job": 7, "schedule": 2, "sensor": 2, "resource": 19, "config": 19}
    assert {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)} == expected
    assert [name for name, text in found.items() if not text or len(text) < 30 or not text[0].isupper()] == []


def test_an_asset_s_description_says_what_it_is_made_from_or_where_it_lies(tmp_path):
    for name, text in described(tmp_path).items():
        if name.startswith("asset ") and name != "asset logs":
            assert "Lies in" in text, name
            first = text.splitlines()[0]
            assert len(first) < 130 or ". " in first, f"{name}: the first line is what a list shows"


def test_daily_partitions_start_on_the_first_day_and_are_read_in_one_run(tmp_path):
    graph = load(tmp_path).resolve_asset_graph()
    for name in ("interactions", "feedback", "cleaned_interactions", "drift_report"):
        node = graph.get(dg.AssetKey(["math-tutor", name]))
        assert node.partitions_def.get_first_partition_key() == "2026-06-01"
        assert node.backfill_policy == dg.BackfillPolicy.single_run()


@pytest.mark.parametrize(
    "more, gone, source",
    [
        ("student: {enabled: false}\n", {"student_model"}, "sft_model"),
        ("quantize: {enabled: false}\n", {"quantized_model"}, None),
        ("sft: {enabled: false}\nstudent: {enabled: false}\n", {"sft_model", "student_model"}, "base_model"),
        ("release: {enabled: false}\n", {"release_candidate", "endpoint"}, "student_model"),
        ("speculator: {enabled: false}\n", {"speculator", "speculator_dataset"}, "student_model"),
        (
            "student: {enabled: false}\nquantize: {enabled: false}\nspeculator: {enabled: false}\n",
            {"student_model", "quantized_model", "speculator", "speculator_dataset"},
            None,
        ),
    ],
)
def test_a_stage_that_is_switched_off_is_not_in_the_graph(tmp_path, more, gone, source):
    found = edges(load(tmp_path, more))
    assert set(found) == set(GRAPH) - gone
    assert not any(parents & gone for parents in found.values())
    if source:
        assert source in found["quantized_model"]


LEARNT = {f"{name}_learnt_nothing_held_out" for name in ("sft_model", "student_model", "speculator")}


@pytest.mark.parametrize(
    ("more", "gone"),
    [
        ("", set()),
        ("sft: {enabled: false}\n", {"fine_tuning_helped", "sft_model_learnt_nothing_held_out"}),
        ("release: {enabled: false}\n", {"gates_hold"}),
        ("drift: {enabled: false}\n", {"traffic_is_as_the_reference"}),
    ],
)
def test_a_check_of_what_is_switched_off_is_not_in_the_graph(tmp_path, more, gone):
    names = {key.name for key in load(tmp_path, more).resolve_asset_graph().asset_check_keys}
    always = {
        "counts_add_up",
        "enough_rows_are_left",
        "no_session_in_two_splits",
        "nothing_held_out_is_in_training",
        "every_stage_has_rows",
        "fine_tuning_helped",
        "gates_hold",
        "traffic_is_as_the_reference",
    }
    assert names == (always | LEARNT) - gone


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("preference", {"curated_interactions", "eval_suite", "sft_dataset"}),
        ("rl_prompts", {"cleaned_interactions", "eval_suite", "sft_dataset"}),
        ("calibration", {"sft_dataset"}),
    ],
)
def test_a_dataset_is_in_the_graph_where_the_recipe_declares_it(tmp_path, name, reads):
    found = edges(load(tmp_path, f"datasets: {{{name}: {{}}}}\nquantize: {{scheme: w4a16}}\n"))
    [new] = set(found) - set(GRAPH)
    assert new.startswith(name) and found[new] == reads | {"traffic_digest"}
    assert ("calibration_dataset" in found["quantized_model"]) is (name == "calibration")


def test_two_jobs_do_not_share_an_asset(tmp_path):
    graph = load(tmp_path)
    logs = graph.resolve_job_def("logs").asset_layer.executable_asset_keys
    train = graph.resolve_job_def("train").asset_layer.executable_asset_keys
    expected = {"interactions", "feedback", "cleaned_interactions", "traffic_digest", "drift_report"}
    assert {key.path[-1] for key in logs} == expected
    assert not logs & train
    assert len(train) == 15


def test_drift_that_is_switched_off_leaves_the_job_of_the_logs(tmp_path):
    logs = load(tmp_path, "drift: {enabled: false}\n").resolve_job_def("logs").asset_layer.executable_asset_keys
    assert {key.path[-1] for key in logs} == {"interactions", "feedback", "cleaned_interactions", "traffic_digest"}


def test_every_code_location_of_the_workspace_has_a_recipe_and_dg_names_the_same_module():
    import tomllib

    workspace = yaml.safe_load((PROJECT / "workspace.yaml").read_text())
    dg_project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["dg"]["project"]
    for location in workspace["load_from"]:
        module = location["python_module"]
        assert module["module_name"] == dg_project["code_location_target_module"]
        assert (PROJECT / "recipes" / f"{module['attribute']}.yaml").exists()


def test_pools_have_limits():
    settings = yaml.safe_load((PROJECT / "pipelines" / "running" / "dagster.yaml").read_text())
    assert settings["concurrency"]["pools"]["default_limit"] == 1
    assert settings["telemetry"]["enabled"] is False


def test_traffic_that_has_ended_has_no_later_partitions(tmp_path):
    graph = load(tmp_path, "last_day: 2026-06-07\n").resolve_asset_graph()
    keys = graph.get(dg.AssetKey(["math-tutor", "interactions"])).partitions_def.get_partition_keys()
    assert (keys[0], keys[-1], len(keys)) == ("2026-06-01", "2026-06-07", 7)


def test_a_training_s_curves_are_a_picture(tmp_path):
    import json

    from assets.presentation import training_curves

    path = tmp_path / "metrics.jsonl"
    lines = [
        {"phase": "sft", "step": step, "loss": 3 / step, "learning_rate": 1e-4, "tokens_per_second": 900 + step}
        for step in range(1, 301)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plain = training_curves(path)
    assert plain.startswith(b"\x89PNG")
    assert len(plain) < 150_000, "large markdown of Dagster's event log fails to load"
    lines[-1] |= {"validation_loss": 0.5}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert training_curves(path) != plain


@pytest.mark.parametrize("more, served", [("", "quantized_model"), ("quantize: {enabled: false}\n", "sft_model")])
def test_a_student_that_drafts_is_read_by_the_drafter_and_by_no_stage_before_what_is_served(tmp_path, more, served):
    found = edges(load(tmp_path, more + "speculator: {architecture: draft_model}\n"))
    assert found["student_model"] == GRAPH["student_model"]
    assert found["speculator"] == {served, "student_model", "speculator_dataset", "traffic_digest"}
    assert found.get("quantized_model", {"sft_model", "length_report"}) - {"traffic_digest"} == {"sft_model", "length_report"}
    assert found["release_candidate"] == {served, "speculator", "evaluation_report", "traffic_digest"}
    assert "student_model" in found["evaluation_report"]


def test_int4_weights_are_rounded_for_the_training_conversations(tmp_path):
    found = edges(load(tmp_path, "quantize: {scheme: w4a16}\n"))
    assert found["quantized_model"] == GRAPH["quantized_model"] | {"sft_dataset", "served_answers"}
    found = edges(load(tmp_path, "quantize: {scheme: w4a16, method: rtn}\n"))
    assert found["quantized_model"] == GRAPH["quantized_model"]
    found = edges(load(tmp_path, "quantize: {kv_cache: fp8}\n"))  # scales of the cache come from the same rows
    assert found["quantized_model"] == GRAPH["quantized_model"] | {"sft_dataset", "served_answers"}


def test_a_base_whose_own_layer_drafts_is_read_by_the_drafter(tmp_path):
    (tmp_path / "mimo").mkdir()
    found = edges(load(tmp_path, "speculator: {architecture: mtp}\n", base="./mimo"))
    assert found["speculator"] == GRAPH["speculator"] | {"base_model"}

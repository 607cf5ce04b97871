"""`millrace plan` as a person uses it."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.finished_artefact import finished_artefact
from pipelines.planning.training_plan import dataset_tokens, estimated_seconds
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("plan command")]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "eight").mkdir()

    def write(base="eight", sft="{max_length: 8192, tokens_per_step: 131072}", more="", layers=32):
        (tmp_path / "eight" / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
        path = tmp_path / "recipe.yaml"
        path.write_text(f"workload: shop\nbase_model: {base}\nsources: {{logs: {{uri: .}}}}\nsft: {sft}\n{more}")
        return path

    return write


def test_a_plan_is_printed_and_can_be_pasted(cli, recipe):
    import yaml

    path = recipe()
    done = cli("plan", path, "--gpus", "8xH100")
    assert "8.03B weights" in done.stdout
    assert "dp_shard 8" in done.stdout
    assert "an estimate" in done.stdout
    pasted = yaml.safe_load(done.stdout[done.stdout.rindex("sft:") :])
    assert pasted["sft"]["mesh"] == {"dp_shard": 8}
    again = recipe(sft=json.dumps({**pasted["sft"], "max_length": 8192, "tokens_per_step": 131072}))
    found = json.loads(cli("plan", again, "--gpus", "8xH100", "--format", "json").stdout)
    assert found["settings"] == pasted["sft"]
    assert found["seconds_estimate"] is None and "epochs depend on the dataset, which the lake does not hold yet" in done.stdout
    assert found["memory_gib"]["total"] < found["device_gib"]


def test_a_student_needs_room_for_its_teacher(cli, recipe):
    path = recipe(more="student: {layers: 8, max_length: 2048, tokens_per_step: 16384, steps: 30}\n")
    found = json.loads(cli("plan", path, "--gpus", "H200", "--stage", "student", "--format", "json").stdout)
    assert found["seconds_estimate"] == pytest.approx(30 * 16_384 / found["tokens_per_second_estimate"])
    assert found["memory_gib"]["teacher"] == pytest.approx(4 * 8.03e9 / 2**30, rel=0.01)
    assert found["weights"] < 3.5e9


@pytest.mark.slow
def test_what_cannot_fit_ends_with_1_and_the_nearest_that_can(cli, recipe):
    done = cli("plan", recipe(layers=6), "--gpus", "1xRTX4090", check=1)
    assert "does not fit 1xRTX4090" in done.stderr
    assert "RTX4090 do (" in done.stderr


def test_what_cannot_be_planned_is_said_in_a_sentence(cli, recipe):
    assert "unknown device" in cli("plan", recipe(), "--gpus", "8xFOO", check=2).stderr
    hub = cli("plan", recipe(base="nobody/nothing-7B"), "--gpus", "H100", check=2, HF_HUB_OFFLINE="1").stderr
    assert "nobody/nothing-7B is an id on a hub" in hub and "config.json is enough" in hub
    expected = "--stage quantize: choose sft or student"
    assert expected in cli("plan", recipe(), "--gpus", "H100", "--stage", "quantize", check=2).stderr
    nowhere = cli("plan", recipe(), "--gpus", "H100", "--lake", recipe().parent / "nowhere", check=2).stderr
    assert "nowhere" in nowhere and "Traceback" not in nowhere
    later = cli("plan", recipe(), "--gpus", "8xH100", MILLRACE_LAKE=str(recipe().parent / "later"))  # a first run makes it
    assert "to paste into the recipe" in later.stdout
    off = recipe(more="student: {enabled: false}\n")
    expected = "--stage student: this recipe switches it off (student.enabled)"
    assert expected in cli("plan", off, "--gpus", "H100", "--stage", "student", check=2).stderr


def test_a_family_that_cannot_be_trained_is_refused(cli, recipe, tmp_path):
    path = recipe()
    (tmp_path / "eight" / "config.json").write_text(
        json.dumps({"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 4})
    )
    said = cli("plan", path, "--gpus", "H100", check=2).stderr
    assert "influence each other" in said and "name a model of another family" in said


def test_the_demo_fits_this_machine(cli):
    found = json.loads(cli("plan", "recipes/demo.yaml", "--gpus", "cpu", "--format", "json").stdout)
    assert found["memory_gib"]["total"] < 3
    assert found["tokens_per_second_estimate"] is None


def test_a_tiny_model_is_not_cut_over_eight_devices():
    from pathlib import Path

    from rich.console import Console

    from pipelines.contract.recipe import load_recipe
    from pipelines.planning.training_plan import as_json, plan_recipe, print_plan

    demo = load_recipe(Path(__file__).resolve().parents[3] / "recipes" / "demo.yaml")
    plan = plan_recipe(demo, "8xH100")
    found = json.loads(as_json(plan, demo, "sft"))
    assert (found["devices"], found["devices_used"]) == (8, 1)
    assert "mesh" not in found["settings"]
    console = Console(record=True, width=200)
    print_plan(plan, demo, "sft", console)
    text = console.export_text()
    assert "1 of 8 devices: this model is so small" in text
    assert "MFLOP a token" in text and "0.0 GFLOP" not in text and "None" not in text


def test_tokens_are_counted_or_estimated_from_characters(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    assert dataset_tokens(None, "shop") is None and dataset_tokens(lake, "shop") is None
    rows = pa.table(
        {"messages": ["x" * 400, "y" * 200, None], "text": [None, None, "z" * 100], "token_ids": [[1] * 7, None, None]}
    )
    finished_artefact(
        Registry(lake, "shop"), "dataset", "sft_dataset", {}, [], lambda home: pq.write_table(rows, home / "train.parquet")
    )
    assert dataset_tokens(lake, "shop") == 700 / 4 + 7


@pytest.mark.parametrize(("steps", "tokens", "seconds"), [(10, None, 10.0), (None, 4_000, 80.0), (None, None, None)])
def test_epochs_cost_as_many_seconds_as_the_dataset_has_tokens(steps, tokens, seconds):
    plan = SimpleNamespace(tokens_per_second=100.0)
    settings = SimpleNamespace(steps=steps, tokens_per_step=100, epochs=2.0)
    assert estimated_seconds(plan, settings, tokens) == seconds

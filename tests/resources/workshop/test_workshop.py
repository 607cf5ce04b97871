"""The workshop: what a drafter goes on from, and that the same inputs always give the same artefact."""

import json

import dagster as dg
import pytest
import yaml
from huggingface_hub import ModelCard

from assets.presentation import shown
from model_ops.speculators.registry import speculator_settings
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import ManifestError, changed_files, digest_holds, files_digest, read_manifest
from resources.workshop.workshop import Workshop


class Launcher:
    """Stands in for the worker: writes down what it was given."""

    def run(self, job, context):
        (job.output / "given.json").write_text(json.dumps(sorted(job.inputs)))
        return {"inputs": {role: str(place) for role, place in job.inputs.items()}}


@pytest.fixture
def workshop(tmp_path):
    return Workshop(Registry(LakeLayout.open(tmp_path / "lake"), "tutor"), Launcher(), threads=1)


def dataset(workshop, text):
    draft = workshop.registry.draft("dataset", "speculator_dataset", "generate", ("model_ops/jobs/job.py",), {"text": text}, [])
    (draft.directory / "rows.txt").write_text(text)
    return workshop.registry.finish(draft, {})


def train(workshop, rows, continue_from):
    settings = speculator_settings(continue_from=continue_from)
    return workshop.train("speculator", "speculator", settings, {"dataset": rows}, None, continue_from=continue_from)


def test_a_drafter_goes_on_from_the_last_one_and_repeats_from_where_that_began(workshop):
    days = [dataset(workshop, text) for text in ("monday", "tuesday", "wednesday")]
    first = train(workshop, days[0], "last")
    assert first.metrics["inputs"].keys() == {"dataset"} and len(first.inputs) == 1
    assert train(workshop, days[0], "last").version == first.version, "the same again: it does not go on from itself"
    second = train(workshop, days[1], "last")
    assert second.metrics["inputs"]["previous"] == str(workshop.directory(first)) and first.as_input() in second.inputs
    assert train(workshop, days[1], "last").version == second.version
    third = train(workshop, days[2], "last")
    assert {item.version for item in third.inputs} == {days[2].version, second.version}
    assert train(workshop, days[2], None).inputs == [days[2].as_input()]


def test_a_directory_from_outside_is_an_input_by_what_it_holds(workshop, tmp_path):
    rows, outside = dataset(workshop, "monday"), tmp_path / "drafter"
    outside.mkdir()
    (outside / "config.json").write_text("{}")
    first = train(workshop, rows, str(outside))
    assert first.metrics["inputs"].keys() == {"dataset"}
    assert [(item.kind, item.name) for item in first.inputs] == [
        ("dataset", "tutor/speculator_dataset"),
        ("external", str(outside)),
    ]
    (outside / "config.json").write_text('{"other": 1}')
    assert train(workshop, rows, str(outside)).version != first.version


def test_a_step_refuses_a_parent_that_is_out_of_date_and_names_what_to_materialize(workshop):
    def make(kind, name, text, *inputs):
        return workshop.build(
            kind,
            name,
            name,
            ("model_ops/jobs/job.py",),
            {"text": text},
            [item.as_input() for item in inputs],
            lambda output: (output / "content.txt").write_text(text) and {},
        )

    old = make("model", "sft_model", "1 step")
    target = make("model", "quantized_model", "int8", old)
    make("dataset", "speculator_dataset", "answers", target)
    assert workshop.current("dataset", "speculator_dataset").inputs == [target.as_input()]
    new = make("model", "sft_model", "2 steps")
    assert workshop.current("model", "sft_model").version == new.version
    with pytest.raises(ManifestError) as refused:
        workshop.current("dataset", "speculator_dataset")
    assert f"quantized_model was made from sft_model {old.version}, current is {new.version}" in str(refused.value)
    assert '--select "quantized_model+"' in str(refused.value)


def test_a_reused_step_says_when_and_by_which_run_it_was_made_and_shows_no_old_seconds(workshop, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_PROGRESS", str(tmp_path / "progress.jsonl"))

    def run(run_id):
        working = Workshop(Registry(workshop.lake, "tutor", run_id=run_id), None, threads=1)
        manifest = working.build("model", "sft_model", "sft", ("model_ops/jobs/job.py",), {}, [], work=fill)
        return shown(manifest, working).metadata

    def fill(output):
        (output / "model.safetensors").write_bytes(b"weights")
        return {"loss": 1.5, "seconds": 100.0, "tokens_per_second": 7.0}

    first, second = run("run-1"), run("run-2")
    assert (first["reused"], first["seconds"]) == (False, 100.0) and "made_at" not in first
    assert (second["reused"], second["loss"]) == (True, 1.5)
    assert second["made_by_run"] == dg.MetadataValue.dagster_run("run-1") and "made_at" in second
    assert "seconds" not in second and "tokens_per_second" not in second
    [event] = (tmp_path / "progress.jsonl").read_text().splitlines()
    assert '"event": "reused"' in event and '"run": "run-1"' in event


def made(workshop, name, op, inputs=(), metrics=None, kind="model", **config):
    def work(output):
        (output / "config.json").write_text("{}")
        if config.get("adapter"):
            (output / "adapter").mkdir()
            (output / "adapter" / "adapter_config.json").write_text("{}")
        return metrics or {}

    return workshop.build(kind, name, op, ("model_ops/jobs/job.py",), config, list(inputs), work)


def card_of(workshop, manifest):
    text = (workshop.directory(manifest) / "README.md").read_text()
    return yaml.safe_load(text.split("---")[1]), text


def test_the_card_says_base_licence_data_metrics_and_how_to_load_it(tmp_path):
    workshop = Workshop(Registry(LakeLayout.open(tmp_path / "lake"), "tutor"), None, threads=1)
    outside = tmp_path / "qwen"
    outside.mkdir()
    (outside / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    base = made(workshop, "base_model", "import_base", [workshop.external(str(outside))], model="Qwen/Qwen3-0.6B")
    metadata, _ = card_of(workshop, base)
    assert metadata["license"] == "apache-2.0" and "base_model_relation" not in metadata
    tuned = made(
        workshop,
        "sft_model",
        "sft",
        [base.as_input()],
        {"validation_loss": 1.25, "steps": 1200, "seconds": 9.5, "unrenderable": {}},
        adapter=True,
    )
    metadata, text = card_of(workshop, tuned)
    assert (metadata["base_model"], metadata["base_model_relation"], metadata["license"]) == (
        ["Qwen/Qwen3-0.6B"],
        "finetune",
        "apache-2.0",
    )
    assert "| validation loss | 1.25 |" in text and "| steps | 1,200 |" in text and "seconds" not in text
    assert "--lora-modules NAME=THIS_DIRECTORY/adapter" in text and f"| tutor/base_model | {base.version} |" in text
    assert ModelCard(text).data.base_model == ["Qwen/Qwen3-0.6B"]
    drafter = made(workshop, "speculator", "speculator", [tuned.as_input()], architecture="eagle3", num_speculative_tokens=5)
    metadata, text = card_of(workshop, drafter)
    assert metadata["tags"] == ["millrace", "speculative-decoding", "eagle3"] and "base_model_relation" not in metadata
    config = json.loads(text.split("--speculative-config '")[1].split("'")[0])
    assert (config["method"], config["num_speculative_tokens"]) == ("eagle3", 5)
    student = made(workshop, "speculator", "speculator", [tuned.as_input()], architecture="of_an_earlier_version")
    assert "vLLM runs no drafter of kind of_an_earlier_version" in card_of(workshop, student)[1]


def test_the_card_is_listed_and_does_not_count_in_the_digest(tmp_path):
    one, other = (Workshop(Registry(LakeLayout.open(tmp_path / name), "tutor"), None, threads=1) for name in ("one", "other"))
    first, second = made(one, "sft_model", "sft", steps=1), made(other, "sft_model", "sft", steps=2)
    assert first.version != second.version and first.digest == second.digest, "the cards differ, the models do not"
    directory = one.directory(first)
    assert "README.md" in {file.path for file in first.files} and digest_holds(first) and changed_files(directory, first) == []
    (directory / "README.md").write_text("other")
    assert changed_files(directory, first) == ["README.md"]
    without = [file for file in first.files if file.path != "README.md"]
    assert files_digest(without) == first.digest


def test_datasets_get_none_and_a_card_of_the_operation_stays(tmp_path):
    workshop = Workshop(Registry(LakeLayout.open(tmp_path / "lake"), "tutor"), None, threads=1)
    rows = made(workshop, "rows", "curate", kind="dataset")
    assert not (workshop.directory(rows) / "README.md").exists()

    def work(output):
        (output / "README.md").write_text("its own")
        return {}

    kept = workshop.build("model", "base_model", "import_base", ("model_ops/jobs/job.py",), {}, [], work)
    assert (workshop.directory(kept) / "README.md").read_text() == "its own" and read_manifest(workshop.directory(kept)) == kept

"""The workshop: what a drafter goes on from, and that the same inputs always give the same artefact."""

import json

import dagster as dg
import pytest

from assets.presentation import shown
from model_ops.speculators.registry import speculator_settings
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import ManifestError
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

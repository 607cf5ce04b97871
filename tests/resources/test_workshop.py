"""The workshop: what a drafter goes on from, and that the same inputs always give the same artefact."""

import json

import pytest

from model_ops.specs import SpeculatorSettings
from resources.lake import Lake
from resources.registry import Registry
from resources.workshop import Workshop


class Launcher:
    """Stands in for the worker: writes down what it was given."""

    def run(self, job, context):
        (job.output / "given.json").write_text(json.dumps(sorted(job.inputs)))
        return {"inputs": {role: str(place) for role, place in job.inputs.items()}}


@pytest.fixture
def workshop(tmp_path):
    return Workshop(Registry(Lake.open(tmp_path / "lake"), "tutor"), Launcher(), threads=1)


def dataset(workshop, text):
    draft = workshop.registry.draft("dataset", "speculator_dataset", "generate", ("model_ops/specs.py",), {"text": text}, [])
    (draft.directory / "rows.txt").write_text(text)
    return workshop.registry.finish(draft, {})


def train(workshop, rows, continue_from):
    settings = SpeculatorSettings(continue_from=continue_from)
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
    assert [(item.kind, item.name) for item in first.inputs] == [("dataset", "tutor/speculator_dataset"), ("external", str(outside))]
    (outside / "config.json").write_text('{"other": 1}')
    assert train(workshop, rows, str(outside)).version != first.version

"""Runs of several processes that are killed or asked to stop: torchrun starts them again, the weights are the same."""

import json
from pathlib import Path

import pytest
import torch
from forked_script import forked_script
from safetensors.torch import load_file

from tests.thorough_cases import asked_cases

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("killed processes")]


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """A folder for each run of train_processes.py that a test looks at; each ended well."""
    folder = tmp_path_factory.mktemp("runs")
    names = ["undisturbed", "stopped", *(f"killed {rank}" for rank in asked_cases(request, "rank"))]
    forked_script(Path(__file__).with_name("train_processes.py"), [folder, *names], folder / "printed")
    for outcome in json.loads((folder / "outcomes.json").read_text()):
        assert outcome["code"] == 0, outcome["stderr"][-3000:]
    return folder


def same_weights(one, other):
    first, second = (load_file(work / "final.safetensors") for work in (one, other))
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def losses(work):
    return [(line["step"], line["loss"]) for line in map(json.loads, (work / "metrics.jsonl").read_text().splitlines())]


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_torchrun_starts_a_run_again_after_a_kill_and_it_ends_with_the_same_weights(runs, rank):
    killed = runs / f"killed {rank}"
    assert int((killed / "resumed").read_text()) in (4, 8)
    assert same_weights(runs / "undisturbed", killed)
    assert losses(runs / "undisturbed") == losses(killed)


def test_a_stop_that_one_process_is_asked_for_stops_all_after_the_same_step_saved(runs):
    stopped = runs / "stopped"
    assert {path.name for path in stopped.glob("stopped-*")} == {"stopped-0", "stopped-1"}
    assert (stopped / "resumed").read_text() == "10", "saved after the step at which it was asked, and gone on from there"
    assert same_weights(runs / "undisturbed", stopped)

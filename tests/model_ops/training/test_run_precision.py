"""One precision for all of a run: its processes, and what continues it on another machine."""

import io
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from model_ops.parallel.world import World
from model_ops.progress import Progress
from model_ops.training import run_precision
from model_ops.training.run_precision import with_run_precision
from model_ops.training.settings import TrainingSettings

AUTO = TrainingSettings(steps=2).resolved()


@pytest.fixture
def machine(monkeypatch):
    """Sets the precision in which this machine is faster."""
    return lambda faster: monkeypatch.setattr(
        run_precision, "decided", lambda precision, device: faster if precision == "auto" else precision)


def precision_of(work, settings=AUTO, world=None):
    """(the run's precision, what the user is told)"""
    said = io.StringIO()
    found = with_run_precision(settings, world or World.alone(torch.device("cpu")), work, Progress(said)).precision
    return found, [json.loads(line)["message"] for line in said.getvalue().splitlines()]


@pytest.mark.parametrize("faster", ["bfloat16", "float32"])
def test_auto_is_the_default_and_becomes_what_the_machine_is_faster_in(machine, tmp_path, faster):
    machine(faster)
    assert AUTO.precision == "auto"
    assert precision_of(tmp_path) == (faster, [])


@pytest.mark.parametrize("began, here", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_a_run_that_continues_on_another_machine_keeps_its_precision(machine, tmp_path, began, here):
    machine(began)
    precision_of(tmp_path)
    machine(here)
    assert precision_of(tmp_path) == (
        began, [f"the run continues in {began}, as it began; this machine is faster in {here}"])
    assert precision_of(tmp_path / "a new run") == (here, [])


def test_a_precision_that_is_set_is_taken_and_slow_bfloat16_is_told(machine, tmp_path):
    machine("float32")
    assert precision_of(tmp_path, AUTO.model_copy(update={"precision": "float32"})) == ("float32", [])
    assert precision_of(tmp_path, AUTO.model_copy(update={"precision": "bfloat16"})) == ("bfloat16", [
        "this machine multiplies bfloat16 slower than float32: leave precision out, or set precision: float32"])
    machine("bfloat16")
    assert precision_of(tmp_path, AUTO.model_copy(update={"precision": "bfloat16"})) == ("bfloat16", [])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kept, answers, chosen", [
    (None, ["bfloat16", "bfloat16"], "bfloat16"), (None, ["float32", "float32"], "float32"),
    (None, ["bfloat16", "float32"], "float32"), (None, ["float32", "bfloat16"], "float32"),
    ("bfloat16", ["float32", "float32"], "bfloat16"), ("float32", ["bfloat16", "bfloat16"], "float32")])
def test_unlike_machines_of_a_mesh_agree(machine, tmp_path, monkeypatch, rank, kept, answers, chosen):
    machine(answers[rank])
    monkeypatch.setattr(World, "gather", lambda self, mine: [mine if place == rank else (None if place else kept, answer)
                                                             for place, answer in enumerate(answers)])
    if kept is not None and rank == 0:
        (tmp_path / "precision.json").write_text(json.dumps({"precision": kept}))
    world = replace(World.alone(torch.device("cpu")), rank=rank, size=2, mesh=SimpleNamespace())
    found, told = precision_of(tmp_path, world=world)
    assert found == chosen
    assert (tmp_path / "precision.json").exists() == (rank == 0)
    assert any("differ in precision" in line for line in told) == (rank == 0 and len(set(answers)) > 1)

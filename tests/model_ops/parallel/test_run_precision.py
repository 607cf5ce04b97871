"""One precision for all of a job: its processes, and what continues it on another machine."""

import io
import json

import pytest
import torch
from forked_script import forked_script

from model_ops.jobs import Progress
from model_ops.machine.precision import concrete_precision, products_in
from model_ops.parallel import run_precision
from model_ops.parallel import world as module
from model_ops.training.settings import TrainingSettings
from model_ops.worker import carry_out

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch):
    """Sets the precision in which this machine is faster."""
    return lambda faster: monkeypatch.setattr(module, "faster_on", lambda device: faster)


def precision_of(work, ask=True):
    """(what the job computed in, what its user is told)"""
    said = io.StringIO()
    with run_precision(work, Progress(said)) as used:
        for _ in range(2 if ask else 0):
            assert concrete_precision("auto", CPU) == concrete_precision("auto", torch.device("meta")) == used["precision"]
            assert [concrete_precision(given, CPU) for given in ("bfloat16", "float32")] == ["bfloat16", "float32"]
            with products_in("auto", CPU):
                assert str((torch.ones(1, 1) @ torch.ones(1, 1)).dtype) == f"torch.{used['precision']}"
    return used, [json.loads(line)["message"] for line in said.getvalue().splitlines()]


@pytest.mark.parametrize("faster", ["bfloat16", "float32"])
def test_a_job_computes_in_what_the_machine_is_faster_in(machine, tmp_path, faster):
    machine(faster)
    assert TrainingSettings().precision == "auto"
    assert precision_of(tmp_path) == ({"precision": faster}, [])
    assert precision_of(tmp_path / "asks nothing", ask=False) == ({}, [])
    assert not (tmp_path / "asks nothing").exists()


@pytest.mark.parametrize("began, here", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_a_job_that_continues_on_another_machine_keeps_its_precision(machine, tmp_path, began, here):
    machine(began)
    precision_of(tmp_path)
    machine(here)
    assert precision_of(tmp_path) == (
        {"precision": began},
        [f"precision: the run continues in {began}, in which it began; this machine is faster in {here}"],
    )
    assert precision_of(tmp_path / "another job") == ({"precision": here}, [])


def test_a_stopped_training_continues_in_its_precision_and_its_metrics_say_so(
    machine, tiny_model, chats, tmp_path, monkeypatch
):
    def job(name):
        path = tmp_path / f"{name}.json"
        path.write_text(
            json.dumps(
                {
                    "operation": "sft",
                    "output": str(tmp_path / name),
                    "inputs": {"model": str(tiny_model), "dataset": str(chats)},
                    "settings": {
                        "steps": 4,
                        "learning_rate": 1e-2,
                        "tokens_per_step": 128,
                        "max_length": 64,
                        "checkpoint_every": 2,
                    },
                    "threads": torch.get_num_threads(),
                }
            )
        )
        return path

    def losses(name):
        return [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]

    class StopsAt(Progress):
        def report(self, phase, done, total, unit, **numbers):
            self.stop_requested = phase == "sft" and done == 2

    monkeypatch.setattr("model_ops.worker.give_back_memory", lambda: None)
    machine("bfloat16")
    said = io.StringIO()
    assert carry_out(job("whole"), None, Progress(said)) == 0
    assert json.loads(said.getvalue().splitlines()[-1])["metrics"]["precision"] == "bfloat16"
    assert carry_out(job("cut"), None, StopsAt()) == 0
    assert len(losses("cut")) == 2
    machine("float32")
    said = io.StringIO()
    assert carry_out(job("cut"), None, Progress(said)) == 0
    metrics = json.loads(said.getvalue().splitlines()[-1])["metrics"]
    assert (metrics["precision"], metrics["resumed_from"]) == ("bfloat16", 2)
    assert losses("cut") == losses("whole")
    assert carry_out(job("exact"), None, Progress()) == 0
    assert losses("exact") != losses("whole")
    assert losses("exact") == pytest.approx(losses("whole"), rel=0.02)


MESH = """
import io, json, sys
from pathlib import Path
import torch, torch.distributed as dist
from benchmarks.parallel import on_processes
from model_ops.parallel import world as module
from model_ops.machine.precision import concrete_precision
from model_ops.jobs import Progress

root = Path(sys.argv[1])
for number, (kept, *faster) in enumerate(json.loads(sys.argv[2])):
    def work():
        rank, said = dist.get_rank(), io.StringIO()
        folder = root / f"{number}-{rank}"           # of machines without a common disk
        if kept and rank == 0:
            folder.mkdir()
            (folder / "precision.json").write_text(json.dumps({"precision": kept}))
        module.faster_on = lambda device: faster[rank]
        with module.run_precision(folder, Progress(said if rank == 0 else None)):
            found = concrete_precision("auto", torch.device("cpu")), "are not alike" in said.getvalue(), (folder / "precision.json").exists()
        (root / f"{number}-{rank}.json").write_text(json.dumps(found))

    on_processes(2, work)
print(json.dumps({path.stem: json.loads(path.read_text()) for path in root.glob("*.json")}))
"""


def test_unlike_machines_of_a_mesh_agree(tmp_path):
    half, full = "bfloat16", "float32"
    cases = [
        (None, half, half),
        (None, full, full),
        (None, half, full),
        (None, full, half),
        (half, full, full),
        (full, half, half),
        (half, full, half),
    ]
    (tmp_path / "runs").mkdir()
    found = forked_script(MESH, [tmp_path / "runs", json.dumps(cases)], tmp_path)
    agreed = [half, full, full, full, half, full, half]
    for number, (kept, *faster) in enumerate(cases):
        unlike = len(set(faster)) > 1
        assert found[f"{number}-0"] == [agreed[number], unlike, True], (kept, faster)
        assert found[f"{number}-1"] == [agreed[number], False, False], (kept, faster)

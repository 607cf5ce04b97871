"""Runs of several processes that are killed or asked to stop: torchrun starts them again, the weights are the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[3]


def torchrun(work, rank=-1, step=-1, number="SIGKILL", restarts=0):
    work.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("train_processes.py")
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts),
         str(script), str(work), str(rank), str(step), number],
        capture_output=True, text=True, timeout=300, env=environment, cwd=ROOT)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    work = tmp_path_factory.mktemp("undisturbed")
    done = torchrun(work)
    assert done.returncode == 0, done.stderr[-3000:]
    return work


def same_weights(one, other):
    first, second = (load_file(work / "final.safetensors") for work in (one, other))
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def losses(work):
    return [(line["step"], line["loss"]) for line in map(json.loads, (work / "metrics.jsonl").read_text().splitlines())]


@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_starts_a_run_again_after_a_kill_and_it_ends_with_the_same_weights(undisturbed, tmp_path, rank):
    done = torchrun(tmp_path, rank, 10, restarts=1)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int((tmp_path / "resumed").read_text()) in (4, 8)
    assert same_weights(undisturbed, tmp_path)
    assert losses(undisturbed) == losses(tmp_path)


def test_a_stop_that_one_process_is_asked_for_stops_all_after_the_same_step_saved(undisturbed, tmp_path):
    done = torchrun(tmp_path, 1, 10, "SIGTERM")
    assert done.returncode == 0, done.stderr[-3000:]
    assert {path.name for path in tmp_path.glob("stopped-*")} == {"stopped-0", "stopped-1"}
    saved = sorted(path.parent.name for path in tmp_path.glob(".work/checkpoints/step-*/state.json"))
    assert saved[-1] == "step-00000010"
    again = torchrun(tmp_path)
    assert again.returncode == 0 and (tmp_path / "resumed").read_text() == "10"
    assert same_weights(undisturbed, tmp_path)

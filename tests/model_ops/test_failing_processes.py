"""Several processes of which one fails: its own error comes first, and is what torchrun names as the cause."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from model_ops.job import Job
from model_ops.parallel.processes import lost_another

ROOT = Path(__file__).parents[2]
SETTINGS = {"steps": 12, "learning_rate": 1e-2, "tokens_per_step": 512, "max_length": 128, "mesh": {"dp_shard": 2}}


def fail(folder, tiny_model, chats, how, rank):
    job = Job(operation="sft", output=folder / "out", inputs={"model": tiny_model, "dataset": chats}, settings=SETTINGS)
    (folder / "job.json").write_text(job.model_dump_json())
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    script = Path(__file__).with_name("failing_worker.py")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script),
         str(folder / "job.json"), str(rank), how],
        capture_output=True, text=True, timeout=300, env=environment, cwd=ROOT)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done, [event for event in events if event["event"] == "error"]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_error_of_the_process_that_failed_comes_first_and_is_the_cause(tiny_model, chats, tmp_path, rank):
    done, errors = fail(tmp_path, tiny_model, chats, "raise", rank)
    assert done.returncode == 1
    assert (errors[0]["rank"], errors[0]["kind"], errors[0]["message"]) == (rank, "ModelError", "this process's own trouble")
    assert all(error["kind"] == "LostProcess" and error["rank"] != rank for error in errors[1:])
    cause = done.stderr.rpartition("Root Cause")[2]
    assert f"rank      : {rank}" in cause and "this process's own trouble" in cause


def test_a_process_that_was_killed_is_the_cause_and_no_other_pretends_to_be(tiny_model, chats, tmp_path):
    done, errors = fail(tmp_path, tiny_model, chats, "kill", 1)
    assert done.returncode == 1
    assert [error["kind"] for error in errors] in ([], ["LostProcess"])
    cause = done.stderr.rpartition("Root Cause")[2]
    assert "rank      : 1" in cause and "SIGKILL" in cause


def test_what_is_the_loss_of_another_process_and_what_is_not():
    reset = RuntimeError("[tcp/pair.cc:537] Read error [127.0.0.1]:36228: Connection reset by peer.")
    wrapped = ValueError("the checkpoint could not be written")
    wrapped.__cause__ = reset
    assert lost_another(reset) and lost_another(wrapped)
    assert not lost_another(ValueError("a template spoke of a Broken pipe"))
    assert not lost_another(RuntimeError("the size of tensor a (3) must match"))

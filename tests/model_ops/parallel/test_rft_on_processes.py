"""Reinforcement fine-tuning on two processes: from the same rollouts it ends with the weights of one process, and it samples
what the weights in training say."""

import json

import pyarrow.parquet as pq
import pytest
import torch
from asked_prompts import write_asked
from forked_script import forked_script
from policy_server import policy_server
from safetensors.torch import load_file
from test_rft import write_prompts
from test_rft_environments import ENVS
from tiny_models import write_target

from tests.thorough_cases import asked_cases, thorough_except

pytestmark = pytest.mark.xdist_group("rft on processes")

FULL, LORA = {}, {"method": "lora", "lora": {"rank": 4}, "precision": "float32"}
LAYOUTS = {
    "fsdp": ({"dp_shard": 2}, FULL), "replicas": ({"dp_replicate": 2}, FULL), "tp": ({"tp": 2}, FULL),
    "fsdp, adapters": ({"dp_shard": 2}, LORA),
}  # fmt: skip

SCRIPT = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from benchmarks.parallel import on_processes
from model_ops.jobs import Job
from model_ops.jobs import Progress
from model_ops.operations import rft

folder, layouts = Path(sys.argv[1]), json.loads(sys.argv[2])
SETTINGS = {"grader": f"{folder}/rewards.py:grade", "steps": 4, "epsilon": 1e-5, "learning_rate": 1e-3, "prompts_per_step": 4,
    "answers": 4, "max_new_tokens": 6, "max_length": 96, "batch_size": 8, "micro_batch_tokens": 96, "precision": "float32",
    "temperature_end": 0.8, "overlong": "none", "kl": 0.05, "nll": 0.1, "sync_steps": 2, "held_out_prompts": 3, "held_out_answers": 2,
    "checkpoint_every": 2, "passing_grade": 0.5, "schedule": "constant"}

def work(name, mesh, changes):
    job = Job(operation="rft", inputs={"model": folder / "model", "prompts": folder / "prompts"}, output=folder / name,
        settings={**SETTINGS, **changes, "mesh": mesh})
    job.output.mkdir(parents=True, exist_ok=True)
    found = rft.run(job, Progress())
    if found:
        (job.output / "numbers.json").write_text(json.dumps(found))

def kept(name):
    return folder / name / ".work"

for name, (mesh, changes) in layouts.items():
    work(f"{name}, one", {}, changes)
    kept(name).mkdir(parents=True)
    for file in ("rollouts.jsonl", "before.json"):
        (kept(name) / file).write_bytes((kept(f"{name}, one") / file).read_bytes())
    on_processes(2, lambda: work(name, mesh, changes))
    on_processes(2, lambda: work(f"{name}, sampled", mesh, changes))
"""


@pytest.fixture(scope="module")
def output(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rft-on-processes")
    write_target(folder / "model", layers=2, vocab_size=300)
    write_asked(folder)
    layouts = {name: LAYOUTS[name] for name in asked_cases(request, "layout")}
    forked_script(SCRIPT, [folder, json.dumps(layouts)], folder / "script")
    return folder


def steps_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("layout", thorough_except(["fsdp", "fsdp, adapters"], list(LAYOUTS)))
@pytest.mark.slow
def test_two_processes_learn_from_rollouts_what_one_learns(output, layout):
    mine, one = (steps_of(output / name) for name in (layout, f"{layout}, one"))
    unlike = ("tokens_per_second", "data_wait_share", "mfu", "peak_memory_mb", "canary_gap", "effective")
    compared = [name for name in one[0] if name not in unlike]
    for step, wanted in zip(mine, one, strict=True):
        kept = {name: wanted[name] for name in compared if isinstance(wanted[name], float | int) and "second" not in name}
        assert {name: step[name] for name in kept} == pytest.approx(kept, abs=2e-4, nan_ok=True)
    weights, of_one = (load_file(output / name / "model.safetensors") for name in (layout, f"{layout}, one"))
    assert weights.keys() == of_one.keys()
    assert all(torch.allclose(value.float(), of_one[name].float(), atol=2e-4, rtol=2**-7) for name, value in weights.items())
    rows, of_rows = (pq.read_table(output / name / "rollouts.parquet").to_pylist() for name in (layout, f"{layout}, one"))
    assert [row["learnt"] for row in rows] == [row["learnt"] for row in of_rows]
    assert [row["gap"] for row in rows] == pytest.approx([row["gap"] for row in of_rows], abs=1e-4)
    assert mine[0]["kl"] < 1e-6 < 1e-4 < mine[-1]["kl"]


@pytest.mark.parametrize("layout", thorough_except(["fsdp", "fsdp, adapters"], list(LAYOUTS)))
@pytest.mark.slow
def test_each_process_samples_its_share_with_the_weights_in_training(output, layout):
    found = json.loads((output / f"{layout}, sampled/numbers.json").read_text())
    assert found["rollouts"] == 4 * 4 * 4 and found["steps"] == 4
    gaps = [step["canary_gap"] for step in steps_of(output / f"{layout}, sampled")]
    assert all(gap < 1e-4 for gap in gaps[::2]) and gaps[1::2] == [None, None]  # of each round's first step
    rows, of_one = (
        [row for row in pq.read_table(output / f"{layout}, {name}" / "rollouts.parquet").to_pylist() if not row["step"]]
        for name in ("sampled", "one")
    )
    assert [row["text"] for row in rows] == [row["text"] for row in of_one]


ATTEMPTS = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from benchmarks.parallel import on_processes
from model_ops.jobs import Job
from model_ops.jobs import Progress
from model_ops.operations import rft
from test_rft_environments import SETTINGS

folder = Path(sys.argv[1])

def work(name, mesh):
    job = Job(operation="rft", inputs={"model": folder / "model", "prompts": folder / "prompts"}, output=folder / name,
        settings={**SETTINGS, "environment": f"{folder}/envs.py:Talk", "steps": 2, "answers": 4, "mesh": mesh})
    job.output.mkdir(exist_ok=True)
    rft.run(job, Progress())

work("one", {})
on_processes(2, lambda: work("two", {"dp_shard": 2}))
"""


@pytest.mark.slow
def test_attempts_in_an_environment_are_those_of_one_process(tmp_path):
    write_target(tmp_path / "model", layers=2, vocab_size=300, tied=False)
    write_prompts(tmp_path / "prompts", goal="say digits")
    (tmp_path / "envs.py").write_text(ENVS)
    forked_script(ATTEMPTS, [tmp_path], tmp_path / "script")
    two, one = (pq.read_table(tmp_path / name / "rollouts.parquet").to_pylist() for name in ("two", "one"))
    assert [(row["text"], row["grade"]) for row in two] == [(row["text"], row["grade"]) for row in one]
    assert (tmp_path / "envs.py").with_name("resets").read_text() == "x" * 2 * (2 * 4 * 4 + 3 * 4 * 4)


SERVED = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from benchmarks.parallel import on_processes
from model_ops.jobs import Job
from model_ops.jobs import Progress
from model_ops.operations import rft

folder, settings = Path(sys.argv[1]), {"grader": f"{sys.argv[1]}/rewards.py:grade", "engine": sys.argv[2], "method": "lora",
    "steps": 2, "learning_rate": 3e-2, "prompts_per_step": 2, "answers": 4, "max_new_tokens": 5, "max_length": 64,
    "precision": "float32", "overlong": "none", "held_out_prompts": 2, "held_out_answers": 2, "mesh": {"dp_shard": 2}}

def work():
    job = Job(operation="rft", inputs={"model": folder / "model", "prompts": folder / "prompts"}, output=folder / "out",
        settings=settings)
    job.output.mkdir(exist_ok=True)
    rft.run(job, Progress())

on_processes(2, work)
"""


@pytest.mark.slow
def test_a_server_gets_the_whole_weights_of_a_mesh(tmp_path):
    write_target(tmp_path / "model", layers=2, vocab_size=300, tied=False)
    write_asked(tmp_path)
    with policy_server(tmp_path / "model") as server:
        forked_script(SERVED, [tmp_path, server.url], tmp_path / "script")
    steps = steps_of(tmp_path / "out")
    assert len(steps) == 2 and all(step["canary_gap"] < 1e-4 for step in steps)
    paths = [each["path"] for each in server.requests]
    assert paths.count("/collective_rpc") == 2 + 3 and "/v1/load_lora_adapter" not in paths

"""Preference training on two processes: every axis of the mesh gives the weights of one process."""

import json

import pyarrow.parquet as pq
import pytest
import torch
from asked_prompts import write_asked
from forked_script import forked_script
from preference_rows import pair, verdict, write_preferences
from safetensors.torch import load_file
from tiny_models import write_target

from tests.thorough_cases import asked_cases, thorough_except

pytestmark = pytest.mark.xdist_group("preference on processes")

LAYOUTS = {
    "one": {}, "one, whole": {}, "fsdp": {"dp_shard": 2}, "replicas": {"dp_replicate": 2}, "tp": {"tp": 2}, "cp": {"cp": 2},
    "sampled": {"dp_shard": 2},
}  # fmt: skip

SCRIPT = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from benchmarks.parallel import on_processes
from model_ops.jobs import Job
from model_ops.jobs import Progress
from model_ops.operations import preference

folder, layouts = Path(sys.argv[1]), json.loads(sys.argv[2])

def work(name, mesh):
    if "whole" in name:  # processes that share a row cannot compute documents that continue others
        preference.joined_tokens = lambda *_: 0
    job = Job(operation="preference", inputs={"model": folder / "model", "dataset": folder / "dataset"}, output=folder / name,
        settings={"loss": [{"dpo": 0.8}, {"bco": 0.2}, {"kto": 0.5}, {"simpo": 0.5}, {"sft": 0.1}], "steps": 3, "epsilon": 1e-5,
        "learning_rate": 1e-3, "tokens_per_step": 600, "max_length": 320, "micro_batch_tokens": 320, "precision": "float32",
        "mesh": mesh})
    job.output.mkdir(parents=True, exist_ok=True)
    preference.run(job, Progress())

def sampled(name, mesh):
    settings = {"loss": "dpo", "steps": 3, "epsilon": 1e-5, "learning_rate": 1e-3, "max_length": 96, "micro_batch_tokens": 96,
        "precision": "float32", "mesh": mesh, "on_policy": {"prompts": "rl_prompts", "grader": f"{folder}/rewards.py:grade",
        "prompts_per_step": 4, "answers": 3, "max_new_tokens": 6, "least_difference": 0.01}}
    job = Job(operation="preference", inputs={"model": folder / "model", "prompts": folder / "prompts"}, output=folder / name,
        settings=settings)
    job.output.mkdir(parents=True, exist_ok=True)
    preference.run(job, Progress())

if "sampled" in layouts:
    mesh = layouts.pop("sampled")
    sampled("sampled, one", {})
    log = folder / "sampled/.work/sampled.jsonl"
    log.parent.mkdir(parents=True)
    log.write_bytes((folder / "sampled, one/.work/sampled.jsonl").read_bytes())
    on_processes(2, lambda: sampled("sampled", mesh))
    on_processes(2, lambda: sampled("sampled, by both", mesh))

given = preference.joined_tokens
for name, mesh in layouts.items():
    preference.joined_tokens = given
    on_processes(2, lambda: work(name, mesh)) if mesh else work(name, mesh)
"""


@pytest.fixture(scope="module")
def output(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("preference-on-processes")
    write_target(folder / "model", layers=2)
    for split, numbers in (("train", range(14)), ("validation", range(14, 19))):
        write_preferences(folder / "dataset", [pair(i) for i in numbers], [verdict(i, i % 3 > 0) for i in numbers], split)
    write_asked(folder)
    asked = asked_cases(request, "layout") | {"one", "one, whole"}
    layouts = {name: mesh for name, mesh in LAYOUTS.items() if name in asked}
    forked_script(SCRIPT, [folder, json.dumps(layouts)], folder / "script")
    return folder


@pytest.mark.parametrize("layout", thorough_except(["fsdp", "cp", "sampled"], [name for name in LAYOUTS if "one" not in name]))
@pytest.mark.slow
def test_two_processes_train_what_one_trains(output, layout):
    one = {"cp": "one, whole", "sampled": "sampled, one"}.get(layout, "one")
    steps, wanted = (
        [json.loads(line) for line in (output / name / "metrics.jsonl").read_text().splitlines()] for name in (layout, one)
    )
    names = [name for name in wanted[-1] if name.startswith(("loss", "reward", "logp", "validation"))] + ["margin", "kl", "z0"]
    for mine, theirs in zip(steps, wanted, strict=True):
        present = [name for name in names if name in theirs]
        assert {name: mine[name] for name in present} == pytest.approx({name: theirs[name] for name in present}, abs=5e-5)
    assert steps[0]["reward_chosen"] == pytest.approx(0, abs=1e-6)
    assert [step["margin"] for step in steps if step["margin"] is not None][-1] > 0
    weights, of_one = (load_file(output / name / "model.safetensors") for name in (layout, one))
    assert weights.keys() == of_one.keys()
    assert all(torch.allclose(value.float(), of_one[name].float(), atol=2e-4, rtol=2**-7) for name, value in weights.items())
    if layout == "sampled":
        rows, of_one, by_both = (
            pq.read_table(output / name / "sampled.parquet").to_pylist() for name in (layout, one, "sampled, by both")
        )
        assert rows == of_one
        assert [row for row in by_both if not row["step"]] == [row for row in of_one if not row["step"]]

"""Distillation on two processes: teacher and student are both sharded, and the student is the one of one process."""

import json

import pytest
import torch
from forked_script import forked_script
from safetensors.torch import load_file

pytestmark = pytest.mark.xdist_group("sharded teacher")

LAYOUTS = {"one": {}, "fsdp": {"dp_shard": 2}, "tp": {"tp": 2}, "cp": {"cp": 2}}

SCRIPT = """
import json, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from benchmarks.parallel import on_processes
from model_ops.jobs import Job
from model_ops.operations import distill
from model_ops.parallel.world import local_part
from model_ops.jobs import Progress

teacher, dataset, output, layouts = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4])
load, make_loss, began = distill.load_model, distill.distillation_loss, {}

def loading(*given, device, **named):
    began["loaded_to"] = str(device)
    return load(*given, device=device, **named)

def with_teacher(teacher, *given):
    parameters = list(teacher.parameters())
    began["held"] = sum(local_part(one).numel() for one in parameters) / sum(one.numel() for one in parameters)
    return make_loss(teacher, *given)

distill.load_model, distill.distillation_loss = loading, with_teacher

def work(name, mesh):
    job = Job(operation="distill", inputs={"teacher": teacher, "dataset": dataset}, output=output / name, settings={
        "layers": 2, "steps": 2, "epsilon": 1e-5, "learning_rate": 1e-3, "tokens_per_step": 256, "max_length": 128,
        "micro_batch_tokens": 128, "precision": "float32", "label_weight": 0.25, "choose_layers": "even",
        "mesh": mesh})
    job.output.mkdir(parents=True, exist_ok=True)
    metrics = distill.run(job, Progress())
    rank = dist.get_rank() if dist.is_initialized() else 0
    (job.output / f"rank-{rank}.json").write_text(json.dumps({**began, "loss": metrics["loss"]}))

for name, mesh in layouts.items():
    on_processes(2, lambda: work(name, mesh)) if mesh else work(name, mesh)
"""


@pytest.fixture(scope="module")
def output(tiny_model, chats, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teachers")
    forked_script(SCRIPT, [tiny_model, chats, folder, json.dumps(LAYOUTS)], folder / "script")
    return folder


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "one"])
@pytest.mark.slow
def test_two_processes_distil_what_one_distils_with_half_of_the_teacher_each(output, layout):
    said = [json.loads((output / layout / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [each["loaded_to"] for each in said] == ["cpu", "meta"], "one process reads the teacher"
    assert all(each["held"] < 0.6 for each in said)
    one = json.loads((output / "one" / "rank-0.json").read_text())
    assert abs(said[0]["loss"] - one["loss"]) < 1e-5
    weights, wanted = (load_file(output / name / "model.safetensors") for name in (layout, "one"))
    assert weights.keys() == wanted.keys()
    assert all(torch.allclose(value.float(), wanted[name].float(), atol=2e-4, rtol=2**-7) for name, value in weights.items())

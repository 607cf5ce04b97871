"""A checkpoint written on one mesh and read on another, on gloo: every weight and moment, bit for bit."""

import json

import pytest
import torch
from forked_script import forked_script
from safetensors.torch import load_file

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("checkpoints on meshes")]

LAYOUTS = {
    "dense": {
        "one": {}, "dp": {"dp_shard": 2}, "replicas": {"dp_replicate": 2}, "tp": {"tp": 2}, "dp x tp": {"dp_shard": 2, "tp": 2},
    },
    "experts": {"one": {}, "ep": {"ep": 2}, "dp": {"dp_shard": 2}},
}  # fmt: skip
PATHS = [
    ("dense", "one", "dp"), ("dense", "dp", "one"), ("dense", "dp", "tp"), ("dense", "tp", "one"), ("dense", "one", "tp"),
    ("dense", "dp x tp", "one"), ("dense", "replicas", "dp x tp"), ("experts", "ep", "one"), ("experts", "one", "ep"),
    ("experts", "ep", "dp"),
]  # fmt: skip
"""Kind of model, the mesh that writes, the mesh that reads."""

SCRIPT = """
import json, sys
from pathlib import Path
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor
from benchmarks.parallel import documents, on_processes, tiny
from model_ops.parallel.world import World
from model_ops.jobs import Progress
from model_ops.training.checkpoint import Checkpoints
from model_ops.objectives.sft import next_token_loss
from model_ops.training.optimizers import build_optimizer
from model_ops.documents.packing import PackedPlan
from model_ops.parallel.mesh_settings import MeshSettings
from model_ops.training.settings import TrainingSettings
from model_ops.training.step import optimizer_step

layouts, paths, place = json.loads(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3])
rows = documents(40, 48, 131)


def whole(value):
    value = value.detach()
    return (value.full_tensor() if isinstance(value, DTensor) else value).clone().contiguous()


def run(kind, mesh, work, dump):
    settings = TrainingSettings(steps=3, learning_rate=1e-2, tokens_per_step=256, max_length=64, precision="float32",
                                checkpoint_every=3, mesh=MeshSettings(**mesh)).resolved()
    changes = {"hidden": 32, "layers": 2, "vocab": 131} | ({"tie_word_embeddings": True} if kind == "dense" else {})
    model = tiny("qwen3" if kind == "dense" else "qwen3_moe", **changes)
    world = World.start(settings.mesh, torch.device("cpu"))
    world.place(model, "float32")
    optimizer = build_optimizer(model, settings)
    checkpoints = Checkpoints(work, model, optimizer, {"phase": "x", "settings": {}, "steps": 3}, settings, world, Progress())
    step, state = checkpoints.load()
    if step == 0:
        plan = PackedPlan(rows, settings)
        for done in (1, 2, 3):
            batches = plan.step(done - 1, world.data_rank, world.data_ranks)
            optimizer_step(model, batches, next_token_loss, optimizer, settings, world, "step")
            checkpoints.after_step(done, {"told": "so"})
    else:
        assert (step, state) == (3, {"told": "so"})
    checkpoints.wait()
    found = {name: whole(value) for name, value in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            found[f"{key} of {name}"] = whole(value)
    if world.leads:
        save_file(found, dump)


def start(kind, mesh, work, dump):
    processes = MeshSettings(**layouts[kind][mesh]).resolved().processes
    if processes == 1:
        run(kind, layouts[kind][mesh], work, dump)
    else:
        on_processes(processes, lambda: run(kind, layouts[kind][mesh], work, dump))


for kind, meshes in layouts.items():
    for mesh in meshes:
        start(kind, mesh, place / kind / mesh, place / f"{kind} {mesh}.safetensors")
for kind, one, other in paths:
    start(kind, other, place / kind / one, place / f"{kind} {one} to {other}.safetensors")
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    place = tmp_path_factory.mktemp("meshes")
    forked_script(SCRIPT, [json.dumps(LAYOUTS), json.dumps(PATHS), place], place)
    return place


@pytest.mark.parametrize(("kind", "one", "other"), PATHS)
@pytest.mark.slow
def test_what_one_mesh_wrote_another_reads_bit_for_bit(dumps, kind, one, other):
    written, read = load_file(dumps / f"{kind} {one}.safetensors"), load_file(dumps / f"{kind} {one} to {other}.safetensors")
    assert written.keys() == read.keys() and any(name.startswith("exp_avg_sq of") for name in written)
    for name, value in written.items():
        assert value.dtype == read[name].dtype and torch.equal(value, read[name]), name


def test_every_process_writes_its_own_part_and_no_part_is_written_twice(dumps):
    for kind, mesh, files in (("dense", "one", 1), ("dense", "dp", 2), ("dense", "dp x tp", 4)):
        folder = dumps / kind / mesh / "checkpoints" / "step-00000003"
        assert len(list(folder.glob("shard-*.safetensors"))) == files
        index = json.loads((folder / "tensors.json").read_text())
        for name, entry in index.items():
            sizes = [torch.Size(part["shape"]).numel() for part in entry["parts"]]
            assert sum(sizes) == torch.Size(entry["shape"]).numel(), name
        state = json.loads((folder / "state.json").read_text())
        assert state["processes"] == files and len(state["files"]) == files + 1

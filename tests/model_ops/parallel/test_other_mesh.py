"""A run that stops on one mesh goes on on another: the same losses and weights as a run that never stopped."""

import json

import pytest
from forked_script import forked_script

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("other mesh")]

SCRIPT = """
import json, sys
from contextlib import nullcontext
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from benchmarks.parallel import documents, on_processes, tiny
from model_ops.parallel.world import World
from model_ops.jobs import Progress, Stopped
from model_ops.objectives.sft import next_token_loss
from model_ops.documents.packing import PackedPlan
from model_ops.parallel.mesh_settings import MeshSettings
from model_ops.training.settings import TrainingSettings
from model_ops.training.trainer import train

folder = Path(sys.argv[1])
rows = documents(60, 64, 130)

class StopAfter(Progress):
    def __init__(self, step, losses):
        super().__init__()
        self.step, self.losses = step, losses
    def report(self, phase, done, total, unit, **numbers):
        self.losses.append(numbers["loss"])
        self.stop_requested = done == self.step and dist.get_rank() == 1  # one process is asked, all of them stop

def go(kind, mesh, work, stop):
    settings = TrainingSettings(steps=8, learning_rate=1e-3, tokens_per_step=512, max_length=64, precision="float32",
                                checkpoint_every=100, mesh=mesh).resolved()
    world = World.start(settings.mesh, torch.device("cpu"))
    with nullcontext() if world.leads else torch.device("meta"):
        model = tiny(kind, hidden=32, vocab=130)
    world.place(model, "float32")
    losses = []
    try:
        train(model, PackedPlan(rows, settings), next_token_loss, settings, work, StopAfter(stop, losses), "x", world=world)
    except Stopped:
        pass
    whole = {n: (v.full_tensor() if isinstance(v, DTensor) else v).detach() for n, v in model.named_parameters()}
    return losses, whole

found = {}
for kind, meshes in json.loads(sys.argv[2]).items():
    straight_losses, straight = go(kind, MeshSettings(), folder / kind / "straight" / ".work", None)
    kept = folder / kind / "moved" / ".work"
    losses = []
    for leg, mesh in enumerate(meshes):
        mesh, note = MeshSettings(**mesh), folder / f"{kind}-{leg}.pt"
        def work():
            leg_losses, whole = go(kind, mesh, kept, (leg + 1) * 3 if leg + 1 < len(meshes) else None)
            if dist.get_rank() == 0:
                gap = max(float((value - straight[name]).abs().max()) for name, value in whole.items())
                note.write_text(json.dumps([leg_losses, gap]))
        on_processes(mesh.resolved().processes, work)
        leg_losses, gap = json.loads(note.read_text())
        losses += leg_losses
    found[kind] = [losses, straight_losses, gap]
print(json.dumps(found))
"""

MESHES = {
    "qwen3": [{"dp_shard": 2}, {"tp": 2}, {"cp": 2, "dp_shard": 2}],
    "qwen3_moe": [{"ep": 2}, {"tp": 2}, {"dp_replicate": 2, "ep": 2}],
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moved")
    return forked_script(SCRIPT, [folder, json.dumps(MESHES)], folder)


@pytest.mark.parametrize("kind", MESHES)
def test_a_run_that_moves_twice_is_the_run_that_stayed(found, kind):
    losses, straight, gap = found[kind]
    assert len(losses) == len(straight) == 8
    assert losses == pytest.approx(straight, abs=1e-5)
    assert gap < 2e-4

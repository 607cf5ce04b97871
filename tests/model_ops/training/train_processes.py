"""What the tests of killed runs start: a tiny model through the trainer on two processes, in all the ways that they ask for.

    python train_processes.py FOLDER NAME...      # runs of these names: exit code and stderr, as JSON in FOLDER/outcomes.json

In a run that is disturbed one process sends itself a signal once some steps are done, in its first life only. Rank 0 leaves
the weights in FOLDER/run/final.safetensors.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from forked_torchrun import forked_torchrun
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from benchmarks.parallel import documents, tiny
from model_ops.documents.packing import PackedPlan
from model_ops.jobs import Progress, Stopped
from model_ops.objectives.sft import next_token_loss
from model_ops.parallel import MeshSettings, World, process_group
from model_ops.training import TrainingSettings, train

RUNS = [
    ("undisturbed", -1, -1, "SIGKILL", 0),
    ("killed 0", 0, 10, "SIGKILL", 1),
    ("killed 1", 1, 10, "SIGKILL", 1),
    ("stopped", 1, 10, "SIGTERM", 0),
    ("stopped", -1, -1, "SIGTERM", 0),  # goes on
]
"""Folder, the process that is hit, the step at which it is, the signal, how often torchrun may start again."""


class Hit(Progress):
    def __init__(self, stream, rank, step, number):
        super().__init__(stream)
        self.place, self.number = (step, rank, "0"), getattr(signal, number)

    def report(self, phase, done, total, unit, **numbers):
        time.sleep(0.05)
        if (done, dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]) == self.place:
            os.kill(os.getpid(), self.number)


def main(work, rank, step, number):
    with process_group():
        progress = Hit(sys.stdout if dist.get_rank() == 0 else None, rank, step, number)
        progress.install_signal_handlers()
        settings = TrainingSettings(
            steps=12,
            learning_rate=1e-2,
            tokens_per_step=256,
            max_length=64,
            precision="float32",
            checkpoint_every=4,
            mesh=MeshSettings(dp_shard=dist.get_world_size()),
        ).resolved()
        model = tiny("qwen3", hidden=32, layers=2, vocab=131)
        world = World.start(settings.mesh, torch.device("cpu"))
        world.place(model, "float32")
        try:
            result = train(
                model,
                PackedPlan(documents(60, 48, 131), settings),
                next_token_loss,
                settings,
                work / ".work",
                progress,
                "sft",
                world=world,
            )
        except Stopped:
            (work / f"stopped-{dist.get_rank()}").touch()
        else:
            found = {
                name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone().contiguous()
                for name, value in model.named_parameters()
            }
            if world.leads:
                save_file(found, work / "final.safetensors")
                (work / "resumed").write_text(str(result.resumed_from))


if __name__ == "__main__":
    folder, outcomes = Path(sys.argv[1]), []
    for number, (name, *hit, restarts) in enumerate(run for run in RUNS if run[0] in sys.argv[2:]):
        (folder / name).mkdir(exist_ok=True)
        outcomes.append(forked_torchrun(main, [folder / name, *hit], folder / f"printed-{number}", restarts=restarts))
    (folder / "outcomes.json").write_text(json.dumps(outcomes))

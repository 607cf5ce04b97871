"""What the tests of killed runs start under torchrun: a tiny model through the trainer on as many processes as there are.

    torchrun --standalone --nproc-per-node 2 train_processes.py WORK RANK STEP SIGNAL

The process RANK sends itself SIGNAL once STEP steps are done, in its first life only. Rank 0 leaves the weights in
WORK/final.safetensors. Exit code 3 stands for Stopped.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from benchmarks.parallel import documents, tiny
from model_ops.losses.linear_cross_entropy import next_token_loss
from model_ops.parallel.mesh_settings import MeshSettings
from model_ops.parallel.processes import process_group
from model_ops.parallel.world import World
from model_ops.progress import Progress, Stopped
from model_ops.training.packing import PackedPlan
from model_ops.training.settings import TrainingSettings
from model_ops.training.trainer import train

torch.set_num_threads(1)
work, rank, step, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]


class Hit(Progress):
    def report(self, phase, done, total, unit, **numbers):
        time.sleep(0.05)
        if (done, dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]) == (step, rank, "0"):
            os.kill(os.getpid(), getattr(signal, number))


def main():
    progress = Hit(sys.stdout if dist.get_rank() == 0 else None)
    progress.install_signal_handlers()
    settings = TrainingSettings(steps=20, learning_rate=1e-2, tokens_per_step=256, max_length=64, precision="float32",
                                checkpoint_every=4, mesh=MeshSettings(dp_shard=dist.get_world_size())).resolved()
    model = tiny("qwen3", hidden=32, layers=2, vocab=131)
    world = World.start(settings.mesh, torch.device("cpu"))
    world.place(model, "float32")
    try:
        result = train(model, PackedPlan(documents(60, 48, 131), settings), next_token_loss, settings, work / ".work", progress,
                       "sft", world=world)
    except Stopped:
        (work / f"stopped-{dist.get_rank()}").touch()
    else:
        found = {name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone().contiguous()
                 for name, value in model.named_parameters()}
        if world.leads:
            save_file(found, work / "final.safetensors")
            (work / "resumed").write_text(str(result.resumed_from))


with process_group():
    main()

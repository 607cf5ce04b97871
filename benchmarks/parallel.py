"""Every layout of processes trains the same model: gloo, four processes, against one.

    python -m benchmarks.parallel [--quick]

The trainer itself (model_ops.training.trainer.train) on packed rows, float32, ten steps of AdamW in several micro-batches:
once in one process, then on each layout. Compared are the loss of the first step and every parameter after the last. The
last line is {max_loss_gap, max_param_gap, layouts}; gaps allowed are 1e-5 and 1e-4, and the script ends with 1 where one
is larger.
Processes are forks of this one with one thread each, so it runs where there are fewer cores than processes.
"""

import argparse
import faulthandler
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch loads

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.record import record
from model_ops.documents.documents import Document
from model_ops.documents.packing import PackedPlan
from model_ops.jobs import Progress
from model_ops.models.attention import packed_attention as packed_attention  # registers "packed"
from model_ops.objectives.sft import next_token_loss
from model_ops.parallel.collectives import whole_tensors
from model_ops.parallel.mesh_settings import MeshSettings
from model_ops.parallel.world import World
from model_ops.training.settings import TrainingSettings
from model_ops.training.trainer import train

STEPS = 10
EPSILON = 1e-5
"""Adam's. Gradients here are 1e-4 to 1e-3 and differ by 1e-8 from one order of summation to another. With the usual 1e-8 a
value whose gradient is nearly zero takes its step in the direction of that difference: four of 33,000 values of the
embedding then end up to 7e-4 apart while whole gradients agree to 1e-6. It is rounding: with 1e-8 and everything in float64
tp 2 and tp 2 x dp 2 end 2e-13 from one process."""
SECONDS = 300
"""No layout takes as long: processes that wait for each other say where, and end."""
LOSS_GAP, PARAMETER_GAP = 1e-5, 1e-4

LAYOUTS: Mapping[str, tuple[str, MeshSettings]] = {
    "dp 4": ("qwen3", MeshSettings(dp_shard=4)),
    "hsdp 2x2": ("qwen3", MeshSettings(dp_replicate=2, dp_shard=2)),
    "tp 2 x dp 2": ("qwen3", MeshSettings(tp=2, dp_shard=2)),
    "cp 2 x dp 2": ("qwen3", MeshSettings(cp=2, dp_shard=2)),
    "ep 2": ("qwen3_moe", MeshSettings(ep=2, dp_shard=2)),
    "tp 2 x cp 2": ("qwen3", MeshSettings(tp=2, cp=2)),
    "tp 2 x ep 2": ("qwen3_moe", MeshSettings(tp=2, ep=2)),
}
"""Name -> architecture and mesh. The claim is about the first five."""


@dataclass(frozen=True)
class Outcome:
    """The loss of every step, and the parameters after the last one (on the first process; whole)."""

    losses: list[float]
    parameters: dict[str, Tensor]


class _Losses(Progress):
    def __init__(self):
        super().__init__()
        self.losses: list[float] = []

    def report(self, phase: str, done: float, total: float, unit: str, **numbers: float) -> None:
        self.losses.append(numbers["loss"])


def tiny(kind: str, hidden: int = 64, layers: int = 2, vocab: int = 512, **changes: object) -> PreTrainedModel:
    """A seeded random float32 model of an architecture, with grouped key heads."""
    torch.manual_seed(0)
    fields = {
        "hidden_size": hidden,
        "intermediate_size": hidden * 3 // 2,
        "num_hidden_layers": layers,
        "head_dim": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": vocab,
        "max_position_embeddings": 1_024,
        "initializer_range": 0.05,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if kind == "qwen3_moe":
        fields |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": hidden // 2}
    if kind == "gpt_oss":
        fields |= {"num_local_experts": 8, "num_experts_per_tok": 2}
    config = AutoConfig.for_model(kind, **{**fields, **changes})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="packed")


def documents(count: int, longest: int, vocab: int) -> list[Document]:
    """Seeded random documents of many lengths; the first tokens of each are not predicted."""
    random = np.random.default_rng(0)
    lengths = random.integers(4, longest + 1, count)
    return [
        Document(f"row-{i}", random.integers(1, vocab, length).astype(np.int32), np.arange(length) >= length // 3)
        for i, length in enumerate(lengths)
    ]


def outcome(
    build: Callable[[], PreTrainedModel], rows: list[Document], mesh: MeshSettings, tokens_per_step: int, max_length: int
) -> Outcome:
    """Ten steps on the processes that there are, each of several micro-batches."""
    settings = TrainingSettings(
        steps=STEPS,
        learning_rate=1e-3,
        epsilon=EPSILON,
        tokens_per_step=tokens_per_step,
        max_length=max_length,
        micro_batch_tokens=max_length,
        precision="float32",
        checkpoint_every=10 * STEPS,
        mesh=mesh,
    ).resolved()
    world = World.start(settings.mesh, torch.device("cpu"))
    with nullcontext() if world.leads else torch.device("meta"):  # the values come from the first process
        model = build()
    world.place(model, settings.precision)
    progress = _Losses()
    with tempfile.TemporaryDirectory() as folder:
        train(
            model,
            PackedPlan(rows, settings),
            next_token_loss,
            settings,
            Path(folder) / ".work",
            progress,
            "parallel",
            world=world,
        )
    return Outcome(progress.losses, whole_tensors(dict(model.named_parameters()), keep=True, to=torch.float32))


def gaps(one: Outcome, many: Outcome) -> tuple[float, float]:
    """Of the first step's loss, and the largest of any parameter after the last step."""
    return (
        abs(one.losses[0] - many.losses[0]),
        max(float((value - many.parameters[name]).abs().max()) for name, value in one.parameters.items()),
    )


def on_processes(count: int, work) -> None:
    """work() on forks of this process, a gloo group over them. Raises RuntimeError where one of them fails."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(count):
            child = os.fork()
            if child == 0:
                code = 1
                faulthandler.dump_traceback_later(SECONDS, exit=True)
                try:
                    # torch creates a fork's thread pool at first use, which is not safe from two threads at once
                    torch.set_num_threads(torch.get_num_threads())
                    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", count), rank=rank, world_size=count)
                    work()
                    dist.barrier()
                    dist.destroy_process_group()
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(code)  # a fork must not go on as its parent
            children.append(child)
        failed = [code for code in (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children) if code]
    if failed:
        raise RuntimeError(f"{len(failed)} of {count} processes failed; what they said is above")


def compare(
    kind: str,
    mesh: MeshSettings,
    one: Outcome,
    rows: list[Document],
    sizes: Mapping[str, int],
    tokens_per_step: int,
    max_length: int,
) -> tuple[float, float]:
    """The gaps between a layout and one process."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "gaps"

        def work() -> None:
            many = outcome(lambda: tiny(kind, **sizes), rows, mesh, tokens_per_step, max_length)
            if dist.get_rank() == 0:
                found.write_text(" ".join(map(repr, gaps(one, many))))

        on_processes(mesh.resolved().processes, work)
        loss_gap, parameter_gap = map(float, found.read_text().split())
    return loss_gap, parameter_gap


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller model; nothing is recorded")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    sizes = {"hidden": 64, "layers": 2, "vocab": 512} if quick else {"hidden": 128, "layers": 4, "vocab": 2_048}
    tokens_per_step, max_length = (1_024, 128) if quick else (4_096, 512)
    rows = documents(160, max_length, sizes["vocab"])
    ones = {
        kind: outcome(partial(tiny, kind, **sizes), rows, MeshSettings(), tokens_per_step, max_length)
        for kind in dict.fromkeys(kind for kind, _ in LAYOUTS.values())
    }
    found = {}
    for name, (kind, mesh) in LAYOUTS.items():
        loss_gap, parameter_gap = compare(kind, mesh, ones[kind], rows, sizes, tokens_per_step, max_length)
        found[name] = {"model": kind, "loss_gap": loss_gap, "param_gap": parameter_gap}
        print(f"{name:14} {kind:10} loss gap {loss_gap:.1e}  parameter gap {parameter_gap:.1e}", flush=True)
    figures = {
        "max_loss_gap": max(layout["loss_gap"] for layout in found.values()),
        "max_param_gap": max(layout["param_gap"] for layout in found.values()),
        "layouts": found,
    }
    record("parallel", figures, keep=not quick)
    return int(figures["max_loss_gap"] > LOSS_GAP or figures["max_param_gap"] > PARAMETER_GAP)


if __name__ == "__main__":
    sys.exit(main())

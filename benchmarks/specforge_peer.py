"""The training command of `specforge` 0.2 on a CPU, in the peer's own environment.

    PEERS/specforge/bin/python benchmarks/specforge_peer.py JOB.json RESULT.json

Knows nothing of this project: benchmarks.drafter_peers starts it. What runs is what `specforge train --config CONFIG` runs, on
hidden states that lie in the peer's own offline format; it knows a CPU itself (gloo, one process). One place does not run
without a GPU and is mended here: the loss is a Triton kernel, for which the reference implementation that stands above it
in the same file is taken. `specforge export --to hf` then writes the trained head as safetensors; that is in no figure.

JOB: threads, config (of the run), output, head. RESULT: version, peak_mb, steps (seconds and loss as the peer's own
logger is told them), and batches: the rows of every step.
"""

import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    os.environ["SPECFORGE_DEVICE"] = "cpu"
    import torch

    torch.set_num_threads(job["threads"])
    from specforge import cli
    from specforge.training import assembly

    take_the_reference_loss()
    steps: list[dict[str, float]] = []

    def logger(metrics: dict[str, Any], step: int) -> None:
        steps.append({"seconds": float(metrics["perf/optimizer_step_time_s"]), "loss": float(metrics["loss"])})

    assembly._logger = logger
    config = Path(job["config"])
    if cli.main(["train", "--config", str(config)]):
        raise SystemExit("specforge train ended with an error")
    peak = peak_mb()
    settings = json.loads(config.read_text())
    cli.main(
        [
            "export",
            "--to",
            "hf",
            "--checkpoint",
            settings["output_dir"],
            "--draft-config",
            settings["model"]["draft_model_config"],
            "--output-dir",
            job["head"],
            "--embedding-source",
            settings["model"]["target_model_path"],
        ]
    )
    Path(sys.argv[2]).write_text(
        json.dumps(
            {
                "version": importlib.metadata.version("specforge"),
                "peak_mb": peak,
                "steps": steps,
                "batches": batches(settings, len(steps)),
            }
        )
    )


def take_the_reference_loss() -> None:
    """See the head of this file."""
    from specforge.algorithms.eagle3 import model
    from specforge.core.loss import _compute_loss

    class Reference:
        apply = staticmethod(_compute_loss)

    model.LogSoftmaxLoss = Reference


def batches(settings: dict[str, Any], count: int) -> list[list[int]]:
    """The rows of every step, from the peer's own order of an epoch; its files are named by their row's number."""
    from specforge.launch import _shard_offline_refs
    from specforge.runtime.data_plane.offline_reader import list_feature_files

    training = settings["training"]
    rows = [int(Path(path).stem) for path in list_feature_files(settings["data"]["hidden_states_path"])]
    micro: list[list[int]] = []
    epoch, size = 0, training["batch_size"]
    while len(micro) < count * training["accumulation_steps"]:
        order = _shard_offline_refs(rows, use_usp_preprocess=False, seed=training["seed"], epoch=epoch, dp_rank=0, dp_size=1)
        micro += [order[start : start + size] for start in range(0, len(order) - size + 1, size)]
        epoch += 1
    at_once = training["accumulation_steps"]
    return [[row for part in micro[step * at_once : (step + 1) * at_once] for row in part] for step in range(count)]


def peak_mb() -> float:
    """The largest resident size of this process. Not ru_maxrss: a process that was started by another begins with its."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 2**10


if __name__ == "__main__":
    main()

"""The training command of `speculators` 0.9 on a CPU, in the peer's own environment.

    PEERS/speculators/bin/python benchmarks/speculators_peer.py JOB.json RESULT.json

Knows nothing of this project: benchmarks.drafter_peers starts it. What runs is what `speculators train FLAGS` runs, on hidden
states that lie in the peer's own offline format. Two places of its trainer do not run without a GPU and are mended here: it
moves model and batches to CUDA device 0 and autocasts for CUDA (here: both "cpu"), and its step clock waits for an accelerator
(here: nothing to wait for). Losses are `--loss-implementation eager`, its own setting for where its Triton losses do not run.

JOB: threads, rows (jsonl with ids and prompt_tokens; the last row is the validation that the peer insists on), data (folder
with hidden_states/), steps, total_seq_len, seed, flags. RESULT: version, peak_mb, steps (seconds, tokens as the peer counts
them, loss), and batches: the rows of every step.
"""

import importlib.metadata
import json
import logging
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    import torch

    torch.set_num_threads(job["threads"])
    from speculators.train import cli, trainer
    from speculators.train.config import TrainConfig

    rows = [json.loads(line) for line in Path(job["rows"]).read_text().splitlines()]
    write_dataset(rows, Path(job["data"]))
    steps: list[dict[str, float]] = []
    run_on_the_cpu(trainer, StepRecorder(steps))
    epochs = batches_by_epoch([len(row["ids"]) for row in rows[:-1]], job)
    # one epoch more and it would train one step more: it looks at --max-steps after a step
    flags = [*job["flags"], "--max-steps", str(job["steps"]), "--epochs", str(len(epochs))]
    cli.main(TrainConfig.resolve(flags))
    Path(sys.argv[2]).write_text(
        json.dumps(
            {
                "version": importlib.metadata.version("speculators"),
                "peak_mb": peak_mb(),
                "steps": steps,
                "batches": [batch for epoch in epochs for batch in epoch][: len(steps)],
            }
        )
    )


def write_dataset(rows: list[dict[str, Any]], folder: Path) -> None:
    """The preprocessed dataset as `speculators prepare-data` leaves it: tokens, which of them are the answer's, lengths."""
    from datasets import Dataset

    dataset = Dataset.from_dict(
        {
            "input_ids": [row["ids"] for row in rows],
            "loss_mask": [[int(place >= row["prompt_tokens"]) for place in range(len(row["ids"]))] for row in rows],
            "seq_len": [len(row["ids"]) for row in rows],
        }
    )
    dataset.with_format("torch").save_to_disk(folder)


def run_on_the_cpu(trainer: Any, recorder: logging.Handler) -> None:
    """See the head of this file. The recorder joins the metric logger here, after the command has set up its own."""
    import torch

    torch.accelerator.synchronize = lambda *_: None
    as_written = trainer.Trainer.setup_trainer

    def setup_trainer(self) -> None:
        self.local_rank, self.device_type = torch.device("cpu"), "cpu"
        as_written(self)
        trainer.metric_logger.addHandler(recorder)

    trainer.Trainer.setup_trainer = setup_trainer


class StepRecorder(logging.Handler):
    """Keeps what the peer's own metric logger is told of every training step."""

    def __init__(self, steps: list[dict[str, float]]):
        super().__init__()
        self.steps = steps

    def emit(self, record: logging.LogRecord) -> None:
        told = record.msg
        if isinstance(told, dict) and told.get("profile"):
            seconds = told["profile"]["step_ms"] / 1_000
            self.steps.append(
                {"seconds": seconds, "tokens": told["profile"]["tokens_per_s"] * seconds, "loss": told["train"]["loss"]}
            )


def batches_by_epoch(lengths: list[int], job: dict[str, Any]) -> list[list[list[int]]]:
    """The rows of every step, of as many epochs as job's steps take, from the peer's own sampler: a function of the
    lengths and the seed."""
    from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2

    sampler = MultipackDistributedBatchSamplerV2(job["total_seq_len"], lengths, num_replicas=1, rank=0, seed=job["seed"])
    epochs: list[list[list[int]]] = []
    while sum(map(len, epochs)) < job["steps"]:
        sampler.set_epoch(len(epochs))
        epochs.append([[int(row) for row in batch] for batch in sampler])
    return epochs


def peak_mb() -> float:
    """The largest resident size of this process. Not ru_maxrss: a process that was started by another begins with its."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 2**10


if __name__ == "__main__":
    main()

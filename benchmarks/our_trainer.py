"""Our training of one job, with the clock, processor seconds and memory of each step: the side of the comparison with TRL.

    python -m benchmarks.our_trainer JOB.json RESULT.json

JOB: a job of a training operation (model_ops.jobs.job.Job). RESULT: peak_mb (largest resident size before weights
are saved), and of every step seconds (clock), cpu_seconds (of all threads), tokens (no padding), targets (predicted tokens) and
loss. reference: the same seconds of the computation of a reference, from its first micro-batch to its last.
"""

import json
import sys
import time
from pathlib import Path

from benchmarks.speculators_peer import peak_mb
from model_ops.jobs import Progress
from model_ops.machine.process import keep_freed_memory, set_torch_environment
from model_ops.worker import carry_out

TRAININGS = ("sft", "preference", "rft", "reward_model", "distill")


class StepClock(Progress):
    """Reads clock, processor seconds and memory after each training step."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.ends: list[tuple[float, float]] = []
        self.reference: list[tuple[float, float]] = []
        self.began = time.perf_counter(), time.process_time()  # the first step's figures hold the loading of the model
        self.peak_mb = 0.0

    def report(self, phase: str, done: float, total: float, unit: str, **numbers: float) -> None:
        now = time.perf_counter(), time.process_time()
        if phase in TRAININGS and unit == "steps" and done > len(self.ends):  # not for a part of a step
            self.ends.append(now)
            self.peak_mb = peak_mb()
        elif phase.startswith("reference"):
            self.reference.append(now)
        super().report(phase, done, total, unit, **numbers)


def main() -> int:
    set_torch_environment()
    keep_freed_memory()
    job, clock = Path(sys.argv[1]), StepClock()
    failed = carry_out(job, None, clock)
    if failed:
        return failed
    log = Path(json.loads(job.read_text())["output"]) / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [
        {
            "seconds": end[0] - begin[0],
            "cpu_seconds": end[1] - begin[1],
            "tokens": line["tokens"],
            "targets": line["target_tokens"],
            "loss": line["loss"],
        }
        for line, begin, end in zip(lines, [clock.began, *clock.ends], clock.ends, strict=False)
    ]
    marks = clock.reference or [(0.0, 0.0)]
    reference = [last - first for first, last in zip(marks[0], marks[-1], strict=True)]
    Path(sys.argv[2]).write_text(json.dumps({"peak_mb": clock.peak_mb, "steps": steps, "reference": reference}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

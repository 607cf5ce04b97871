"""Quantize jobs on one process and on several: what the tests start.

    python quantize_on_processes.py JOBS.json        # a list of jobs; runs each and prints what it says, as a JSON list

A job whose settings have a mesh runs on forks of this process. Batches are of 256 tokens, so that few rows make several.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist

from benchmarks.parallel import on_processes
from model_ops.calibration import weights as calibrated
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.operations import quantize

quantize.MICRO_BATCH_TOKENS = 256


class StopsAt(Progress):
    """Asks one process to stop after a block."""

    def __init__(self, block: int, rank: int):
        super().__init__()
        self.block, self.rank = block, rank

    def report(self, phase, done, total, unit, **numbers):
        if phase == "calibrate" and done == self.block and dist.get_rank() == self.rank:
            os.kill(os.getpid(), signal.SIGTERM)


def carry_out(job: Job, said: Path, stop: dict | None) -> None:
    leads = not dist.is_initialized() or dist.get_rank() == 0
    computed, own = [], calibrated._of_block
    calibrated._of_block = lambda block, *given: computed.append(block.index) or own(block, *given)
    progress = StopsAt(**stop) if stop else Progress()
    progress.install_signal_handlers()
    try:
        outcome = {"metrics": quantize.run(job, progress)}
    except (ModelError, Stopped) as error:
        outcome = {"error": type(error).__name__, "message": str(error)}
    if leads:
        said.write_text(json.dumps({**outcome, "computed": computed}))


def main() -> None:
    outcomes = []
    for given in json.loads(Path(sys.argv[1]).read_text()):
        stop = given.pop("stop", None)
        job = Job.model_validate(given)
        said = job.output.with_suffix(".json")
        job.output.mkdir(parents=True, exist_ok=True)
        processes = (job.settings.get("mesh") or {}).get("processes", 1)
        if processes == 1:
            own = calibrated._of_block
            carry_out(job, said, stop)
            calibrated._of_block = own
        else:
            on_processes(processes, lambda job=job, said=said, stop=stop: carry_out(job, said, stop))
        outcomes.append(json.loads(said.read_text()))
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()

"""model_ops.worker in which one of several processes fails: what the tests start.

    python failing_worker.py JOB.json...      # {exit code, stdout, stderr} for each of FAILURES, as a JSON list

A process fails when it takes the rows of step 5. Each run has a job of its own.
"""

import json
import os
import signal
import sys
from pathlib import Path

from forked_torchrun import forked_torchrun

import model_ops.operations.sft  # noqa: F401  before the forks, with all that it imports
from model_ops.documents.packing import PackedPlan
from model_ops.jobs import ModelError
from model_ops.worker import main

FAILURES = [(0, "raise"), (1, "raise"), (1, "kill")]
"""The process that fails, and how."""


def fail(job, rank, how):
    plain = PackedPlan.step

    def step(self, index, *given):
        if index == 5 and os.environ["RANK"] == str(rank):
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ModelError("this process's own trouble")
        return plain(self, index, *given)

    PackedPlan.step = step
    sys.exit(main([job]))


if __name__ == "__main__":
    outcomes = [
        forked_torchrun(fail, [job, *failure], Path(job).with_suffix(""))
        for job, failure in zip(sys.argv[1:], FAILURES, strict=True)
    ]
    print(json.dumps(outcomes))

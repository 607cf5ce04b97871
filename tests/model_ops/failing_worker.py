"""model_ops.worker in which one of several processes fails: what the tests start under torchrun.

    torchrun ... failing_worker.py JOB.json RANK raise|kill      RANK fails when it takes the rows of step 5
"""

import os
import signal
import sys

from model_ops.errors import ModelError
from model_ops.training.packing import PackedPlan
from model_ops.worker import main

job, rank, how = sys.argv[1:]
plain = PackedPlan.step


def step(self, index, *given):
    if index == 5 and os.environ["RANK"] == rank:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ModelError("this process's own trouble")
    return plain(self, index, *given)


PackedPlan.step = step
sys.exit(main([job]))

"""One job over several processes of this machine, through torchrun's elastic agent.

    python -m model_ops.parallel.launch JOB.json --processes 4 [--restarts 0]

is `torchrun --standalone --nproc-per-node 4 -m model_ops.worker JOB.json`, and says one thing more: stdout carries the
event lines of the first process (model_ops.worker), the `error` of whichever process failed, and, where a process died
without a word, {"event": "died", "rank": 2, "signal": "SIGKILL"}. SIGTERM reaches every process; they save, end with 0,
and so does this one. More nodes are torchrun's own matter: `torchrun --nnodes ... -m model_ops.worker JOB.json` takes the
same job.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

SAVE_SECONDS = 110
"""What processes that were asked to stop get for their checkpoint, before they are killed."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model_ops.parallel.launch", description=__doc__.splitlines()[0])
    parser.add_argument("job", type=Path, help="a job file (model_ops.specs.Job as JSON)")
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--restarts", type=int, default=0, help="how often dead processes are started again, all together")
    given = parser.parse_args(arguments)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    words = ["--standalone", "--nproc-per-node", str(given.processes), "--max-restarts", str(given.restarts),
             "--shutdown-timeout", str(SAVE_SECONDS), "-m", "model_ops.worker", str(given.job)]
    try:
        run(parse_args(words))
    except SignalException:
        return 0
    except ChildFailedError as error:
        # SIGTERM is how the agent ends the others once one has failed.
        killed = {rank: failure.exitcode for rank, failure in error.failures.items()
                  if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM}
        for rank, code in sorted(killed.items()):
            print(json.dumps({"event": "died", "rank": rank, "signal": signal.Signals(-code).name}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

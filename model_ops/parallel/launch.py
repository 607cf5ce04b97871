"""One job over several processes of this machine, through torchrun's elastic agent.

    python -m model_ops.parallel.launch JOB.json --processes 4 [--restarts 0]

is `torchrun --standalone --nproc-per-node 4 -m model_ops.worker JOB.json`, and says one thing more: stdout carries the
event lines of the first process (model_ops.worker), the `error` of whichever process failed, and, where a process died
without a word, {"event": "died", "rank": 2, "signal": "SIGKILL"}. After that all processes are started again, `restarts`
times at most, and a warning says so: they continue from the newest checkpoint. What a process says itself (wrong inputs, a
loss that is no number) would only come again, and ends the job; torchrun's own --max-restarts does not tell these apart.
SIGTERM reaches every process; they save, end with 0, and so does this one. More nodes are torchrun's own matter:
`torchrun --nnodes ... -m model_ops.worker JOB.json` takes the same job.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

SAVE_SECONDS = 110
"""What processes that were asked to stop get for their checkpoint, before they are killed."""
SAME_MOMENT_SECONDS = 1
"""The agent tells whole seconds, ten times a second."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model_ops.parallel.launch", description=__doc__.splitlines()[0])
    parser.add_argument("job", type=Path, help="a job file (model_ops.job.Job as JSON)")
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--restarts", type=int, default=0, help="how often all processes are started again once one was killed")
    given = parser.parse_args(arguments)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    words = ["--standalone", "--nproc-per-node", str(given.processes), "--max-restarts", "0",
             "--shutdown-timeout", str(SAVE_SECONDS), "-m", "model_ops.worker", str(given.job)]
    for left in reversed(range(given.restarts + 1)):
        try:
            run(parse_args(words))
            return 0
        except SignalException:
            return 0
        except ChildFailedError as error:
            killed = _killed(error.failures)
        for rank, name in killed.items():
            _say(event="died", rank=rank, signal=name)
        if not killed:
            break
        if left:
            rank, name = next(iter(killed.items()))
            _say(event="warning", message=f"process {rank} of {given.processes} ended with {name}; all of them start again "
                                          f"from the newest checkpoint ({left} restarts left)")
            _say(event="restarted")
    return 1


def _killed(failures: Mapping[int, ProcessFailure]) -> dict[int, str]:
    """The processes whose death by a signal began it all. The agent ends the others by SIGTERM and, where they hang in a
    collective, by SIGKILL; others abort because they lost one: all of these come later, or after an error that was told."""
    until = min(failure.timestamp for failure in failures.values()) + SAME_MOMENT_SECONDS
    return {rank: signal.Signals(-failure.exitcode).name for rank, failure in sorted(failures.items())
            if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM and failure.timestamp <= until}


def _say(**event: object) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main())

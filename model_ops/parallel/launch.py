"""Runs one job in several processes of this machine with torchrun's elastic agent, and restarts them after a crash.

    python -m model_ops.parallel.launch JOB.json --processes 4 [--restarts 0]

stdout carries the event lines of the first process (model_ops.worker) and the `error` of a process that failed. If a signal
kills a process, stdout gets {"event": "died", "rank": 2, "signal": "SIGKILL"}, and all start again from the newest checkpoint,
at most `restarts` times. An error that a process reports itself would happen again, so it ends the job; torchrun's own
--max-restarts does not distinguish the two. On SIGTERM every process saves a checkpoint and exits with 0.
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
"""Seconds that processes have to save a checkpoint after a request to stop, before they are killed."""
SAME_MOMENT_SECONDS = 1
"""Failures within this many seconds count as simultaneous, because the agent reports whole seconds."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model_ops.parallel.launch", description=__doc__.splitlines()[0])
    parser.add_argument("job", type=Path, help="a job file (model_ops.jobs.job.Job as JSON)")
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--restarts", type=int, default=0, help="how often all processes are started again once one was killed")
    given = parser.parse_args(arguments)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    words = [
        "--standalone",
        "--nproc-per-node",
        str(given.processes),
        "--max-restarts",
        "0",
        "--shutdown-timeout",
        str(SAVE_SECONDS),
        "-m",
        "model_ops.worker",
        str(given.job),
    ]
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
            _say(
                event="warning",
                message=f"process {rank} of {given.processes} ended with {name}; all of them start again "
                f"from the newest checkpoint ({left} restarts left)",
            )
            _say(event="restarted")
    return 1


def _killed(failures: Mapping[int, ProcessFailure]) -> dict[int, str]:
    """rank -> signal of the processes that were killed first. Later deaths are consequences: the agent ends the others with
    SIGTERM or, in a collective, SIGKILL, and processes abort after losing another one. {} if an error was reported first."""
    until = min(failure.timestamp for failure in failures.values()) + SAME_MOMENT_SECONDS
    return {
        rank: signal.Signals(-failure.exitcode).name
        for rank, failure in sorted(failures.items())
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM and failure.timestamp <= until
    }


def _say(**event: object) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Runs one job in several processes of this machine with torchrun's elastic agent. stdout has the first process's event lines
and the `error` of a process that failed, which ends the job. If a signal kills a process, {"event": "died", "rank": 2,
"signal": "SIGKILL"} is written and all start again from the newest checkpoint, at most `restarts` times."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from model_ops.jobs import ModelError

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure


LOST_SECONDS = 30
"""Seconds that a process waits for torchrun to end it after it lost another process."""
LOST = (
    "Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed", "remote process exited",
    "Connection refused", "peer has closed",
)  # fmt: skip
"""Parts of the errors of gloo, NCCL and the store when the other side of a connection is gone."""


def started_by_torchrun() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def rank() -> int:
    return int(os.environ.get("RANK", "0")) if started_by_torchrun() else 0


def local_threads(threads: int) -> int:
    """This process's share of a job's CPU threads."""
    return max(1, threads // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))) if started_by_torchrun() else threads


@contextmanager
def process_group() -> Iterator[None]:
    """Context manager of the group of all processes. Raises ModelError if there are more processes than devices. After an error
    the group is not destroyed: other processes may hang in a collective, and torchrun's agent ends them."""
    if not started_by_torchrun():
        yield
        return
    import torch
    import torch.distributed as dist

    place, beside = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.is_available():
        devices = torch.cuda.device_count()
        if beside > devices:
            raise ModelError(
                f"{beside} processes run on this machine, which has {devices} accelerators: start at most "
                "as many processes, or make the mesh smaller"
            )
        torch.cuda.set_device(place)
        backends = "cpu:gloo,cuda:nccl"
    else:
        backends = "cpu:gloo"
    # torchrun's store outlives a restart (torch 2.13, --standalone): without its own prefix, a restarted run would find the
    # addresses of the previous run and wait for dead processes.
    store, place, processes = next(dist.rendezvous("env://"))
    life = dist.PrefixStore(f"life-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group(backends, store=life, rank=place, world_size=processes)
    yield
    dist.barrier()
    dist.destroy_process_group()


def report_failure(error: BaseException, stop_requested: Callable[[], bool]) -> bool:
    """Reports an error of this process to torchrun as the cause; returns False if only another process was lost. In that case
    nothing is reported: this process waits until torchrun finds the failed process and ends both."""
    if not started_by_torchrun():
        return True
    if lost_another(error):
        until_s = time.monotonic() + LOST_SECONDS
        while not stop_requested() and time.monotonic() < until_s:
            time.sleep(0.05)
        return False
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)
    return True


def lost_another(error: BaseException | None) -> bool:
    """Whether an error or one of its causes is a broken connection to another process."""
    while error is not None:
        failures = getattr(error, "failures", None)  # torch.distributed.checkpoint: the errors by process
        if isinstance(failures, dict) and any(lost_another(failure[0]) for failure in failures.values()):
            return True
        if isinstance(error, RuntimeError | ConnectionError) and any(sign in str(error) for sign in LOST):
            return True
        error = error.__cause__
    return False


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

"""The process group under torchrun: rank, device, CPU threads, reports of failures.

with process_group() as rank:      # 0 without torchrun
    ...
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from model_ops.jobs import ModelError

LOST_SECONDS = 30
"""Seconds that a process waits for torchrun to end it after it lost another process."""
LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "remote process exited",
    "Connection refused",
    "peer has closed",
)
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
    """Context manager of the group of all processes. Raises ModelError if there are more processes than devices.

    After an error the group is not destroyed: other processes may hang in a collective, and torchrun's agent ends them.
    """
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
    """Reports an error of this process to torchrun as the cause; returns False if only another process was lost.

    In that case nothing is reported: this process waits until torchrun finds the failed process and ends both.
    """
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

"""This process among those that torchrun started: its group, its device, its share of the CPU.

    with process_group() as rank:      # 0 where this process is alone
        ...
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from model_ops.errors import ModelError

LOST_SECONDS = 30
"""How long a process that lost another one waits for torchrun to end it."""
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed", "remote process exited",
        "Connection refused", "peer has closed")
"""What gloo, NCCL and the store say when the other side of a connection is gone."""


def started_by_torchrun() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def rank() -> int:
    return int(os.environ.get("RANK", "0")) if started_by_torchrun() else 0


def local_threads(threads: int) -> int:
    """What this process may use of the CPU threads of a job."""
    return max(1, threads // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))) if started_by_torchrun() else threads


@contextmanager
def process_group() -> Iterator[None]:
    """The group of all processes while the body runs. Raises ModelError where there are more of them than devices.

    After an error the group is left as it is: the others may wait in it for what never comes, and their agent ends them.
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
            raise ModelError(f"{beside} processes on this machine, which has {devices} accelerators: "
                             "start as many as there are, or make the mesh smaller")
        torch.cuda.set_device(place)
        backends = "cpu:gloo,cuda:nccl"
    else:
        backends = "cpu:gloo"
    # torchrun's store outlives a restart (torch 2.13, --standalone): without a prefix of its own a new life finds the
    # addresses of the one before, and waits for processes that are dead.
    store, place, processes = next(dist.rendezvous("env://"))
    life = dist.PrefixStore(f"life-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group(backends, store=life, rank=place, world_size=processes)
    yield
    dist.barrier()
    dist.destroy_process_group()


def report_failure(error: BaseException, stop_requested: Callable[[], bool]) -> bool:
    """Tells torchrun of an error that is this process's own, so that it is named as the cause; says whether it is.

    Where the error is only that another process is gone, nothing is told: this process waits for torchrun to find the one
    that failed, and to end it too.
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
    """Whether an error, or what caused it, is that a connection to another process broke."""
    while error is not None:
        failures = getattr(error, "failures", None)  # of torch.distributed.checkpoint: every process's own
        if isinstance(failures, dict) and any(lost_another(failure[0]) for failure in failures.values()):
            return True
        if isinstance(error, RuntimeError | ConnectionError) and any(sign in str(error) for sign in LOST):
            return True
        error = error.__cause__
    return False

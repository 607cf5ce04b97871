"""This process among those that torchrun started: its group, its device, its share of the CPU.

    with process_group() as rank:      # 0 where this process is alone
        ...
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from model_ops.errors import ModelError


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
        dist.init_process_group("cpu:gloo,cuda:nccl")
    else:
        dist.init_process_group("cpu:gloo")
    yield
    dist.barrier()
    dist.destroy_process_group()

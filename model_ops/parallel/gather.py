"""Whole tensors out of the parts that processes hold, one at a time.

    weights = whole_tensors(model.state_dict(), keep=world.leads, to=torch.bfloat16)

Every process calls it alike. A process that keeps them gets all of them in main memory; the others hold one at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

# It advises to gather over several axes in one call, once a tensor; this is done once a run.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def leads() -> bool:
    """Whether this process writes what there is one of."""
    return not dist.is_initialized() or dist.get_rank() == 0


def wait_for_all() -> None:
    """Until every process has come here."""
    if dist.is_initialized():
        dist.barrier()


def whole_tensors(tensors: Mapping[str, Tensor], keep: bool, to: torch.dtype) -> dict[str, Tensor]:
    """The tensors on the CPU, floating ones in dtype `to`; empty where they are not kept."""
    found = {}
    for name, value in tensors.items():
        value = value.detach()
        if isinstance(value, DTensor):
            value = value.full_tensor()
        if keep:
            found[name] = value.to("cpu", to if value.is_floating_point() else value.dtype)
    return found

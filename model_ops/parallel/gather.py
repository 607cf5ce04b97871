"""Whole tensors out of the parts that processes hold, one at a time.

    weights = whole_tensors(model.state_dict(), keep=world.leads, to=torch.bfloat16)

    whole_again(model, keep=world.leads)                   # the same in place: the model that keeps them is cut no longer

Every process calls it alike. A process that keeps them gets all of them in main memory; the others hold one at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
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


def whole_again(model: nn.Module, keep: bool) -> None:
    """Gives a model its whole parameters back, on the CPU, where they are kept; elsewhere it stays as it is. A parameter that
    several modules share is one again."""
    found: dict[int, nn.Parameter] = {}
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if not isinstance(parameter, DTensor):
                continue
            if id(parameter) not in found:
                whole = parameter.detach().full_tensor()
                found[id(parameter)] = nn.Parameter(whole.cpu(), parameter.requires_grad) if keep else parameter
            setattr(module, name, found[id(parameter)])
    if found and keep:
        model.cpu()

"""Gathers sharded tensors (DTensors) into whole tensors in main memory, one at a time.

    weights = whole_tensors(model.state_dict(), keep=world.leads, to=torch.bfloat16)

    gather_parameters(model, keep=world.leads)                   # the same in place, for a model's parameters

Every process makes the same calls. A process with keep=True gets all tensors in main memory; others hold one at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from model_ops.tensors import rounded

# It logs advice to gather over several axes in one call for every tensor; gathering happens once per run.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def leads() -> bool:
    """Whether this is the first process, which writes files."""
    return not dist.is_initialized() or dist.get_rank() == 0


def wait_for_all() -> None:
    """Waits until every process has called this."""
    if dist.is_initialized():
        dist.barrier()


def whole_tensor(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor, on its device; another tensor as it is. Every process calls this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_tensors(tensors: Mapping[str, Tensor], keep: bool, to: torch.dtype) -> dict[str, Tensor]:
    """The whole tensors on the CPU, floating-point ones in dtype `to`, rounded as `rounded` does; {} if keep is False."""
    whole = {}
    for name, value in tensors.items():
        value = whole_tensor(value.detach())
        if keep:
            whole[name] = rounded(value.cpu(), to, name) if value.is_floating_point() else value.cpu()
    return whole


def gather_parameters(model: nn.Module, keep: bool) -> None:
    """Replaces a model's sharded parameters by whole ones on the CPU if keep is True; otherwise the model stays sharded. Shared
    parameters stay shared."""
    gathered: dict[int, nn.Parameter] = {}
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if not isinstance(parameter, DTensor):
                continue
            if id(parameter) not in gathered:
                whole = parameter.detach().full_tensor()
                gathered[id(parameter)] = nn.Parameter(whole.cpu(), parameter.requires_grad) if keep else parameter
            setattr(module, name, gathered[id(parameter)])
    if gathered and keep:
        model.cpu()

"""Matrices of a block shared out between processes: who computes which, and their results brought together.

    owners = shares([cost of each], world.size)               # the process of each
    tensors = exchanged(own, layouts, owners, world)          # all tensors, on every process
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from model_ops.parallel.world import World
from model_ops.tensor_files import TORCH_NAMES, Layout


def shares(costs: Sequence[float], processes: int) -> list[int]:
    """The process of each piece of work: the largest first, each to the process with least to do."""
    load, owners = [0.0] * processes, [0] * len(costs)
    for place in sorted(range(len(costs)), key=lambda each: -costs[each]):
        owners[place] = load.index(min(load))
        load[owners[place]] += costs[place]
    return owners


def exchanged(own: Mapping[str, Mapping[str, Tensor]], layouts: Mapping[str, Layout], owners: Mapping[str, int],
              world: World) -> dict[str, dict[str, Tensor]]:
    """The tensors of all layers from the processes that own them, in main memory. own: layer -> its tensors, of this process's
    layers. layouts: layer -> dtype and shape of its tensors."""
    if world.size == 1:
        return {layer: dict(own[layer]) for layer in owners}
    found: dict[str, dict[str, Tensor]] = {}
    for layer, owner in owners.items():
        found[layer] = {}
        for part, (dtype, shape) in layouts[layer].items():
            if owner == world.rank:
                tensor = own[layer][part].cpu().contiguous()
            else:
                tensor = torch.empty(shape, dtype=getattr(torch, TORCH_NAMES[dtype]))
            dist.broadcast(tensor.view(-1).view(torch.uint8), owner)
            found[layer][part] = tensor
    return found

"""The processes of a training run: which share of a step's rows each of them takes, and sums over all of them.

    world = World.alone(torch.device("cpu"))
    batches = plan.step(index, world.data_rank, world.data_ranks)
    count = world.total(count)

Processes that differ only in which part of a weight they hold (tensor parallelism) take the same rows; processes that
share rows along the sequence (context parallelism) take the same rows and cut them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class World:
    """One process among `size`. data_rank of data_ranks says which share of every step's rows is its own."""

    device: torch.device
    rank: int = 0
    size: int = 1
    data_rank: int = 0
    data_ranks: int = 1

    @classmethod
    def alone(cls, device: torch.device) -> World:
        """A run in one process."""
        return cls(device)

    @property
    def leads(self) -> bool:
        """Whether this process writes what there is one of: logs, progress, the finished model."""
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes that hold different tokens; on one process, the tensor."""
        return value

    def greatest(self, numbers: list[float]) -> list[float]:
        """The greatest of each number over ALL processes, so that they decide alike; on one process, the numbers."""
        if self.size == 1:
            return numbers
        found = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        return found.tolist()

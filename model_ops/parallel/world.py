"""The processes of a training run: which share of a step's rows each of them takes, and sums over all of them.

    world = World.alone(torch.device("cpu"))            # one process
    world = World.start(settings.mesh)                  # as many as torchrun started; one where it did not
    world.place(model, settings.precision)              # cuts the model; on one process, nothing
    batches = plan.step(index, world.data_rank, world.data_ranks)
    output = world.run(loss, model, batches[0])
    count = world.total(count)

Processes that differ only in which part of a weight they hold (tensor parallelism) take the same rows; processes that
share rows along the sequence (context parallelism) take the same rows and cut them. All of them go through the same
calls in the same order, also on rows that ask for nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from model_ops.batch import Batch
from model_ops.errors import ModelError
from model_ops.loss import Loss, LossOutput, Mean
from model_ops.parallel.context_parallel import cut, pad
from model_ops.parallel.mesh import Mesh
from model_ops.parallel.mesh_settings import MeshSettings
from model_ops.parallel.place import Task, place
from model_ops.parallel.place_single_unit import place_single_unit
from model_ops.torch_internals import foreach_norm


@dataclass(frozen=True, eq=False)
class World:
    """One process among `size`. data_rank of data_ranks says which share of every step's rows is its own."""

    device: torch.device
    rank: int = 0
    size: int = 1
    data_rank: int = 0
    data_ranks: int = 1
    mesh: Mesh | None = None
    _tasks: WeakKeyDictionary[nn.Module, Task] = field(default_factory=WeakKeyDictionary)

    @classmethod
    def alone(cls, device: torch.device) -> World:
        """A run in one process."""
        return cls(device)

    @classmethod
    def start(cls, mesh: MeshSettings, device: torch.device | None = None) -> World:
        """The run that this process belongs to. Raises ModelError where the mesh is not that of the processes."""
        cuda = torch.cuda.is_available()
        if not dist.is_initialized():
            processes = mesh.resolved().processes
            if processes > 1:
                raise ModelError(f"the mesh is of {processes} processes and this is one: start it with `torchrun --standalone "
                                 f"--nproc-per-node {processes} -m model_ops.worker JOB.json`")
            return cls.alone(device or torch.device("cuda" if cuda else "cpu"))
        device = device or torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) if cuda else 0)
        if device.type == "cpu" or not cuda:
            device = torch.device("cpu")
        laid_out = Mesh.over(mesh, device.type)
        return cls(device, dist.get_rank(), dist.get_world_size(), laid_out.data_rank, laid_out.data_ranks, laid_out)

    @property
    def leads(self) -> bool:
        """Whether this process writes what there is one of: logs, progress, the finished model."""
        return self.rank == 0

    @property
    def draws_as(self) -> int:
        """Which randomness this process draws: processes with other tokens draw other numbers, those of tp the same."""
        return 0 if self.mesh is None else self.rank // self.mesh.sizes["tp"]

    @property
    def loading_device(self) -> torch.device:
        """Where a model is read to: the device itself; main memory of the first process, before it is cut and moved block
        by block; nowhere in the others, to which `place` sends their parts."""
        return self.device if self.mesh is None else torch.device("cpu" if self.leads else "meta")

    def place(self, model: nn.Module, precision: str) -> None:
        """Cuts the model over the processes; where there is one, the model stays as it is."""
        if self.mesh is not None:
            self._tasks[model] = place(model, self.mesh, precision, self.device)

    def place_single_unit(self, model: nn.Module) -> None:
        """The same for a model that is gathered as one, not block by block (`model_ops.parallel.place_single_unit`)."""
        if self.mesh is not None:
            self._tasks[model] = place_single_unit(model, self.mesh)

    def run(self, loss: Loss, model: nn.Module, batch: Batch, last: bool = True) -> LossOutput:
        """The loss of this process's part of a batch; sums and counts add up over `total`.

        Gradients are whole after the backward pass of a step's `last` batch: copies of the model add theirs up only then.
        """
        if self.mesh is None:
            return loss(model, batch)
        task = self._task(model)
        if self.mesh.sizes["dp_replicate"] > 1:
            task.set_requires_all_reduce(last)
        terms, metrics = task(_as_tuples, loss, model, self.part_of(batch))
        return LossOutput(*({name: Mean(*mean) for name, mean in means.items()} for means in (terms, metrics)))

    def part_of(self, batch: Batch) -> Batch:
        """The tokens of a batch that this process computes: all of them, unless context parallelism cuts the rows."""
        if self.mesh is None:
            return batch
        batch = pad(batch, self.mesh.multiple)
        return batch if self.mesh.context is None else cut(batch, self.mesh.context)

    def evaluate(self, model: nn.Module, work: Callable[[], Any]) -> Any:
        """What `work` returns; it may read and call the model, without gradients, on every process alike."""
        if self.mesh is None:
            return work()
        task = self._task(model)
        try:
            return task(work)
        finally:
            task.reshard()  # else the next step would be computed with these weights

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes that hold different tokens; on one process, the tensor."""
        if self.mesh is None:
            return value
        value = value.clone()
        dist.all_reduce(value, group=self.mesh.tokens)
        return value

    def greatest(self, numbers: list[float]) -> list[float]:
        """The greatest of each number over ALL processes, so that they decide alike; on one process, the numbers."""
        if self.mesh is None:
            return numbers
        found = torch.tensor(numbers, dtype=torch.float64)  # on the CPU: it waits for no device, and longer than NCCL would
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.tolist()

    def totals(self, values: list[float]) -> list[float]:
        """`total` of several numbers, in double precision."""
        if self.mesh is None:
            return values
        return self.total(torch.tensor(values, dtype=torch.float64, device=self.device)).tolist()

    def gather(self, value: Any) -> list[Any]:
        """A small object of every process, by rank."""
        if self.mesh is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def norm(self, gradients: Sequence[Tensor]) -> float:
        """The norm of a whole gradient of which this process holds parts; the same number on every process."""
        if self.mesh is None:
            return float(torch.nn.utils.get_total_norm(list(gradients)))
        squares = torch.zeros((), dtype=torch.float64, device=self.device)
        shares: dict[int, list[Tensor]] = {}
        for gradient in gradients:
            shares.setdefault(_copies(gradient, self.size), []).append(local_part(gradient))
        for copies, parts in shares.items():
            held = [part for part in parts if part.numel()]
            if held:
                squares += torch.stack(foreach_norm(held)).double().square().sum() / copies
        dist.all_reduce(squares)
        return math.sqrt(float(squares)) if bool(torch.isfinite(squares)) else math.nan

    def _task(self, model: nn.Module) -> Task:
        if model not in self._tasks:
            raise ModelError(f"{type(model).__name__} was not placed on the mesh; call world.place first")
        return self._tasks[model]


def local_part(tensor: Tensor) -> Tensor:
    """The values of a tensor that this process holds, not a copy."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _copies(gradient: Tensor, processes: int) -> int:
    """How many processes hold the same part."""
    if not isinstance(gradient, DTensor):
        return processes
    over = gradient.device_mesh
    parts = math.prod(over.size(dim) for dim, placement in enumerate(gradient.placements) if hasattr(placement, "dim"))
    return processes // parts


def _as_tuples(loss: Loss, model: nn.Module, batch: Batch) -> tuple[dict[str, tuple], dict[str, tuple]]:
    """A loss's output in containers that FSDP looks into: it needs the tensors that the backward pass begins from."""
    output = loss(model, batch)
    return tuple({name: (mean.sum, mean.count) for name, mean in means.items()} for means in (output.terms, output.metrics))

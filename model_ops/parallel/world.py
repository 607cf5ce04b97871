"""The processes of a training run: their shares of a step's rows, reductions over all of them, and one precision for all, also
after a restart. All make the same calls in the same order, also with rows without labels.

    world = World.start(settings.mesh)                  # the processes of torchrun; one without torchrun
    world.place(model, settings.precision)              # shards the model; does nothing in one process
    output = world.run(loss, model, plan.step(index, world.data_rank, world.data_ranks)[0])
    world.parts["sync"] = engine.sync                   # rank 0 alone decides, and all ranks do:
    result = world.conduct(work)                        # rank 0 calls work(), which calls world.ask("sync", 3)
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from model_ops.files import write_json
from model_ops.jobs import ModelError, Progress, Stopped
from model_ops.machine import AUTO, Concrete, Precision, faster_on
from model_ops.parallel.mesh import Mesh, cut, pad
from model_ops.parallel.mesh_settings import MeshSettings
from model_ops.parallel.place import Task, place, place_single_unit
from model_ops.tensors import AnyBatch, Loss, LossOutput, Mean, torch_internals


@contextmanager
def run_precision(work: Path, progress: Progress) -> Iterator[dict[str, Concrete]]:
    """Context manager of a job. In a group of processes each enters it, and the first one knows `work`."""
    used: dict[str, Concrete] = {}

    def of_run(device: torch.device) -> Concrete:
        if not used:
            used["precision"] = _agreed(work / "precision.json", faster_on(device), progress)
        return used["precision"]

    if dist.is_initialized():  # now, since all processes have to take part
        of_run(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    AUTO.append(of_run)
    try:
        yield used
    finally:
        AUTO.remove(of_run)


def _agreed(file: Path, own: Concrete, progress: Progress) -> Concrete:
    """The precision of all processes: what the file of the first one has, else what suits all of them. own: suits this one."""
    leads = not dist.is_initialized() or dist.get_rank() == 0
    earlier: Concrete | None = json.loads(file.read_text())["precision"] if leads and file.exists() else None
    of_processes = [(earlier, own)]
    if dist.is_initialized():
        of_processes *= dist.get_world_size()
        dist.all_gather_object(of_processes, (earlier, own))
    earlier, answers = of_processes[0][0], {answer for _, answer in of_processes}
    chosen: Concrete = earlier or ("bfloat16" if answers == {"bfloat16"} else "float32")
    if earlier not in (None, own):
        progress.event(
            "note", message=f"precision: the run continues in {earlier}, in which it began; this machine is faster in {own}"
        )
    if len(answers) > 1:
        progress.event("note", message=f"precision: the machines of this run are not alike, so all compute in {chosen}")
    if leads and earlier is None:
        write_json(file, {"precision": chosen})
    return chosen


Result = TypeVar("Result")
DONE, STOPPED = "", " "
"""What rank 0 sends in place of a part's name."""
LONGEST_WORK = timedelta(days=7)
"""Of `conduct` between two requests: a round of rollouts lasts as long as servers, judges and environments do."""


@dataclass(frozen=True, eq=False)
class World:
    """Process `rank` of `size`. data_rank of data_ranks: its share of every step's rows."""

    device: torch.device
    rank: int = 0
    size: int = 1
    data_rank: int = 0
    data_ranks: int = 1
    mesh: Mesh | None = None
    control_group: dist.ProcessGroup | None = None
    """Process group over which rank 0 sends its requests to the other ranks."""
    parts: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """What every process calls when the first one asks for it by name."""
    _tasks: WeakKeyDictionary[nn.Module, Task] = field(default_factory=WeakKeyDictionary)

    @classmethod
    def alone(cls, device: torch.device) -> World:
        """A run in one process."""
        return cls(device)

    @classmethod
    def start(cls, mesh: MeshSettings, device: torch.device | None = None) -> World:
        """The run of this process. Raises ModelError if the mesh does not match the number of processes."""
        cuda = torch.cuda.is_available()
        if not dist.is_initialized():
            processes = math.prod(mesh.sizes().values())
            if processes > 1:
                raise ModelError(
                    f"the mesh has {processes} processes, but this run has one: start it with `torchrun "
                    f"--standalone --nproc-per-node {processes} -m model_ops.worker JOB.json`"
                )
            return cls.alone(device or torch.device("cuda" if cuda else "cpu"))
        device = device or torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) if cuda else 0)
        if device.type == "cpu" or not cuda:
            device = torch.device("cpu")
        laid_out = Mesh.over(mesh, device.type)
        control_group = dist.new_group(backend="gloo", timeout=LONGEST_WORK)
        ranks = dist.get_rank(), dist.get_world_size(), laid_out.data_rank, laid_out.data_ranks
        return cls(device, *ranks, laid_out, control_group)

    @property
    def leads(self) -> bool:
        """Whether this is the first process, which writes logs, progress and the finished model."""
        return self.rank == 0

    @property
    def rng_stream(self) -> int:
        """RNG stream id; tensor-parallel peers share one."""
        return 0 if self.mesh is None else self.rank // self.mesh.sizes["tp"]

    @property
    def loading_device(self) -> torch.device:
        """The device to load a model to: this process's device if it is alone. Otherwise the CPU in the first process and
        "meta" in the others, to which `place` sends their parts."""
        return self.device if self.mesh is None else torch.device("cpu" if self.leads else "meta")

    def place(self, model: nn.Module, precision: Precision) -> None:
        """Shards the model over the processes; does nothing in one process."""
        if self.mesh is not None:
            self._tasks[model] = place(model, self.mesh, precision, self.device)

    def place_single_unit(self, model: nn.Module) -> None:
        """Shards a small model as a single FSDP unit (`model_ops.parallel.place`)."""
        if self.mesh is not None:
            self._tasks[model] = place_single_unit(model, self.mesh)

    def run(self, loss: Loss[AnyBatch], model: nn.Module, batch: AnyBatch, last: bool = True) -> LossOutput:
        """The loss of this process's part of a batch; `total` adds its sums and counts over processes. Gradients are complete
        after the backward pass of a step's `last` batch; replicas add up their gradients only then."""
        if self.mesh is None:
            return loss(model, batch)
        task = self._task(model)
        if self.mesh.sizes["dp_replicate"] > 1:
            task.set_requires_all_reduce(last)
        terms, metrics = task(_as_tuples, loss, model, self.part_of(batch))
        return LossOutput(*({name: Mean(*mean) for name, mean in means.items()} for means in (terms, metrics)))

    def part_of(self, batch: AnyBatch) -> AnyBatch:
        """The tokens of a batch that this process computes: all, unless context parallelism splits the rows."""
        if self.mesh is None:
            return batch
        batch = pad(batch, self.mesh.multiple)
        return batch if self.mesh.context is None else cut(batch, self.mesh.context)

    def evaluate(self, model: nn.Module, work: Callable[[], Any]) -> Any:
        """Returns work(), which may read and call the model without gradients. Every process makes the same call."""
        if self.mesh is None:
            return work()
        task = self._task(model)
        try:
            return task(work)
        finally:
            task.reshard()  # otherwise the next step would use these gathered weights

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes with different tokens; in one process, the tensor."""
        if self.mesh is None:
            return value
        value = value.clone()
        dist.all_reduce(value, group=self.mesh.tokens)
        return value

    def greatest(self, numbers: list[float]) -> list[float]:
        """The maximum of each number over ALL ranks, so that they decide alike."""
        if self.mesh is None:
            return numbers
        maxima = torch.tensor(numbers, dtype=torch.float64)  # on the CPU: no device sync, and a longer timeout than NCCL's
        dist.all_reduce(maxima, dist.ReduceOp.MAX)
        return maxima.tolist()

    def totals(self, values: list[float]) -> list[float]:
        """`total` of several numbers, in double precision."""
        if self.mesh is None:
            return values
        return self.total(torch.tensor(values, dtype=torch.float64, device=self.device)).tolist()

    def gather(self, value: Any) -> list[Any]:
        """A small object from every process, by rank."""
        if self.mesh is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def conduct(self, work: Callable[[], Result]) -> Result:
        """Runs work() on rank 0; returns its picklable result on every rank. The others serve `ask` meanwhile. Does not nest.
        If work() raises Stopped, every rank does. Any other error is raised on rank 0 alone, and the others lose rank 0."""
        if self.mesh is None:
            return work()
        if not self.leads:
            return self._take_part()
        try:
            result = work()
        except Stopped:
            self._send(STOPPED)
            raise
        self._send(DONE, result)
        return result

    def ask(self, part: str, *given: Any) -> Any:
        """Inside `conduct`, on rank 0: every rank calls the part; returns rank 0's result."""
        if self.mesh is not None:
            self._send(part, *given)
        return self.parts[part](*given)

    def _take_part(self) -> Any:
        while True:
            request: list[Any] = [None]
            dist.broadcast_object_list(request, 0, self.control_group)
            part, *given = request[0]
            if part == STOPPED:
                raise Stopped
            if part == DONE:
                return given[0]
            self.parts[part](*given)

    def _send(self, part: str, *given: Any) -> None:
        dist.broadcast_object_list([(part, *given)], 0, self.control_group)

    def norm(self, gradients: Sequence[Tensor]) -> Float[Tensor, ""]:
        """The norm of the whole gradient, of which this process has parts; equal on every process."""
        if self.mesh is None:
            return torch.nn.utils.get_total_norm(list(gradients))
        squares = torch.zeros((), dtype=torch.float64, device=self.device)
        shares: dict[int, list[Tensor]] = {}
        for gradient in gradients:
            shares.setdefault(_copies(gradient, self.size), []).append(local_part(gradient))
        for copies, parts in shares.items():
            held = [part for part in parts if part.numel()]
            if held:
                squares += torch.stack(torch_internals.foreach_norm(held)).double().square().sum() / copies
        dist.all_reduce(squares)
        return squares.sqrt()

    def _task(self, model: nn.Module) -> Task:
        if model not in self._tasks:
            raise ModelError(f"{type(model).__name__} is not sharded over the mesh; call world.place first")
        return self._tasks[model]


def local_part(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, not a copy."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _copies(gradient: Tensor, processes: int) -> int:
    """Number of processes with the same part."""
    if not isinstance(gradient, DTensor):
        return processes
    over = gradient.device_mesh
    parts = math.prod(over.size(dim) for dim, placement in enumerate(gradient.placements) if hasattr(placement, "dim"))
    return processes // parts


def _as_tuples(loss: Loss[AnyBatch], model: nn.Module, batch: AnyBatch) -> tuple[dict[str, tuple], dict[str, tuple]]:
    """A loss's output as tuples and dicts, in which FSDP finds the tensors that the backward pass begins from."""
    output = loss(model, batch)
    means = output.terms, output.metrics
    terms, metrics = ({name: (mean.sum, mean.count) for name, mean in each.items()} for each in means)
    return terms, metrics

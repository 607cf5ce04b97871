"""Shards a model over a mesh: first matrices and experts (tensor_parallel), then FSDP2's fully_shard takes every block, the
experts under ep, and the rest. Gradients are SUMMED over processes: the trainer divides once. Only the first process needs
values. A drafter, whose layers are read from outside their forwards, is one unit (`place_single_unit`), gathered whole in
float32."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from model_ops.families import blocks_of
from model_ops.jobs import ModelError
from model_ops.machine import Precision, concrete_precision
from model_ops.parallel.mesh import Mesh
from model_ops.parallel.sharding import plan_sharding
from model_ops.parallel.tensor_parallel import compute_locally, cut_parameters


class Task(nn.Module):
    """The root module for FSDP. All work of a step runs inside its forward, so that embedding, last norm and head are gathered
    for a loss that reads them directly."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, work: Callable[..., Any], *given: Any) -> Any:
        return work(*given)


def place(model: nn.Module, mesh: Mesh, precision: Precision, device: torch.device) -> Task:
    """Shards `model` in place. Products run in `precision`; shards, gradients and their sums are in the weights' dtype. Raises
    ModelError for a model that the mesh cannot shard."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    plan = plan_sharding(shapes, model.config, mesh.settings)
    _check_heads(model, mesh)
    if mesh.sizes["tp"] > 1 and any(isinstance(m, nn.Linear) and m.weight is None for m in model.modules()):
        raise ModelError("weights in 4 bits do not support tensor parallelism; set tp to 1, or method: lora")
    half = concrete_precision(precision, device) == "bfloat16" and any(p.dtype == torch.float32 for p in model.parameters())
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if half else None, reduce_dtype=torch.float32 if half else None, cast_forward_inputs=False
    )
    cut = mesh.sizes["tp"] > 1 or mesh.sizes["ep"] > 1
    from_leader = _some_lack_values(model)
    if from_leader:
        refuse_another_model(shapes)
    names: dict[nn.Parameter, str] = {}

    def prepare(module: nn.Module) -> None:
        """Receives values for parameters on the meta device and shards over tp and ep, before FSDP takes the module."""
        if from_leader:
            _receive(module, model)
        names.update({parameter: name for name, parameter in model.named_parameters()})
        if cut:
            mine = {parameter for parameter in module.parameters() if not isinstance(parameter, DTensor)}
            owners = {parameter: places for parameter, places in _owners(model).items() if parameter in mine}
            cut_parameters(owners, lambda parameter: plan[names[parameter]], mesh.tensor)
            names.clear()
            names.update({parameter: name for name, parameter in model.named_parameters()})

    def dim(parameter: nn.Parameter) -> Shard:
        taken = plan[names[parameter]].placements
        free = next((d for d in range(parameter.ndim) if d not in taken.values()), 0)
        return Shard(taken.get("fsdp", free))

    task = Task(model)
    for block in blocks_of(model):
        prepare(block)
        for name, module in block.named_modules():
            own = module.parameters(recurse=False)
            if name.endswith(".experts") and any("ep" in plan[names[parameter]].placements for parameter in own):
                fully_shard(module, mesh=mesh.expert_fsdp, mp_policy=policy, shard_placement_fn=dim)
        fully_shard(block, mesh=mesh.fsdp, mp_policy=policy, shard_placement_fn=dim)
        names.clear()  # it keeps the whole parameters alive
    prepare(model)
    # Head and embedding stay float32 when they are read, as in one process under autocast.
    fully_shard(task, mesh=mesh.fsdp, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False), shard_placement_fn=dim)
    if cut:
        compute_locally(model, plan, mesh.tensor)
    for module in task.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return task


def describe(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Parameter -> its shape, its placements by mesh axis, and the shape of this process's part."""
    description = {}
    for name, parameter in model.named_parameters():
        over = parameter.device_mesh if isinstance(parameter, DTensor) else None
        placements = (
            {}
            if over is None
            else {
                axis.replace("expert_", ""): placement.dim
                for axis, placement in zip(over.mesh_dim_names, parameter.placements, strict=True)
                if hasattr(placement, "dim") and over.size(over.mesh_dim_names.index(axis)) > 1
            }
        )
        part = parameter.to_local() if over is not None else parameter
        description[name] = {"shape": list(parameter.shape), "placements": placements, "local": list(part.shape)}
    return description


def _owners(model: nn.Module) -> dict[nn.Parameter, list[tuple[nn.Module, str]]]:
    owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            owners.setdefault(parameter, []).append((module, name))
    return owners


def _some_lack_values(model: nn.Module) -> bool:
    """Whether some processes have the model on the meta device while others have its values. The exchange is on the CPU,
    because NCCL times out after ten minutes, and reading the model may take longer."""
    meta = any(parameter.is_meta for parameter in model.parameters())
    flags = torch.tensor([int(meta), int(not meta)])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    return bool(flags.all())


def refuse_another_model(shapes: dict[str, tuple[int, ...]]) -> None:
    """Raises ModelError if a process has other parameters than the first, because collectives would then hang."""
    every: list[dict[str, tuple[int, ...]]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, shapes)
    for rank, others in enumerate(every):
        for name in others.keys() ^ every[0].keys() or [n for n, shape in others.items() if shape != every[0][n]]:
            raise ModelError(
                f"process {rank} and the first one have different models, they differ in {name}: give all "
                "processes the same model"
            )


def _receive(module: nn.Module, model: nn.Module) -> None:
    """Broadcasts the values of a module from the first process; skips parameters that are sharded already."""
    owners = _owners(model)
    for parameter in list(module.parameters()):
        if isinstance(parameter, DTensor):
            continue
        whole = parameter
        if parameter.is_meta:
            whole = nn.Parameter(torch.empty_like(parameter, device="cpu"), requires_grad=parameter.requires_grad)
            for holder, name in owners[parameter]:
                setattr(holder, name, whole)
        dist.broadcast(whole.data, 0)
    for holder in module.modules():
        for name, buffer in list(holder.named_buffers(recurse=False, remove_duplicate=False)):
            received = torch.empty_like(buffer, device="cpu") if buffer.is_meta else buffer
            setattr(holder, name, received)
            dist.broadcast(received, 0)


def _check_heads(model: nn.Module, mesh: Mesh) -> None:
    heads, tp, cp = model.config.num_attention_heads, mesh.sizes["tp"], mesh.sizes["cp"]
    local = heads // tp if heads % tp == 0 else heads
    if local % cp:
        raise ModelError(f"mesh cp {cp} does not divide the {local} attention heads of a process; set cp to a divisor")


def place_single_unit(model: nn.Module, mesh: Mesh) -> Task:
    """Shards `model`, which every process has on its device, in place, with the values of the first process. Raises ModelError
    for a mesh with cp, ep or tp, and if the processes' models differ."""
    others = [axis for axis in ("cp", "ep", "tp") if mesh.sizes[axis] > 1]
    if others:
        raise ModelError(
            f"mesh {others[0]} {mesh.sizes[others[0]]} is not supported for {type(model).__name__}: set "
            f"{others[0]} to 1 and use dp_shard or dp_replicate"
        )
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    refuse_another_model(shapes)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)  # values computed on each process may differ in the last bit
    plan = plan_sharding(shapes, model.config, mesh.settings)
    dims = {parameter: plan[name].placements.get("fsdp", 0) for name, parameter in model.named_parameters()}
    task = Task(model)
    fully_shard(
        task,
        mesh=mesh.fsdp,
        mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False),
        shard_placement_fn=lambda parameter: Shard(dims[parameter]),
        ignored_params={parameter for parameter in dims if not parameter.requires_grad},
    )
    task.set_gradient_divide_factor(1.0)
    task.set_force_sum_reduction_for_comms(True)
    return task

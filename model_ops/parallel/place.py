"""A model onto a mesh: logical axes and rules become FSDP2, HSDP, tensor, sequence and expert parallelism.

    task = place(model, mesh, "bfloat16", device)     # the model's parameters are now DTensors, each process's part
    total, count, metrics = task(loss, model, batch)

Order: matrices and experts are cut (tensor_parallel), then every block, the experts that ep cuts, and the rest are
handed to FSDP2's fully_shard, which gathers a block when it is computed and frees it after. Gradients are SUMMED over
the processes, not averaged: the trainer divides once, by the tokens of all of them.

Blocks move to the device one at a time as they are cut, so a device never holds the whole model; each process reads the
whole of it into its own main memory first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from model_ops.errors import ModelError
from model_ops.parallel.mesh import Mesh
from model_ops.parallel.sharding import Sharding, plan_sharding
from model_ops.parallel.tensor_parallel import compute_locally, cut_parameters


class Task(nn.Module):
    """The module FSDP takes for the root: whatever a step does with a model happens inside its forward, so that
    embedding, last norm and head are whole for a loss that reads them directly."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, work: Callable[..., Any], *given: Any) -> Any:
        return work(*given)


def place(model: nn.Module, mesh: Mesh, precision: str, device: torch.device) -> Task:
    """Cuts `model` in place. Products run in `precision`; the parts, their gradients and sums are in the weights' dtype.

    Raises ModelError for a model that the mesh cannot cut.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    plan = plan_sharding(shapes, model.config, mesh.settings)
    _check_heads(model, mesh)
    parameter_device = next(model.parameters()).device
    if mesh.sizes["tp"] > 1 or mesh.sizes["ep"] > 1:
        cut_parameters(model, plan, mesh.tensor)
        compute_locally(model, plan, mesh.tensor)
    trained = {parameter.dtype for parameter in model.parameters()}
    half = precision == "bfloat16" and trained == {torch.float32}
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if half else None, reduce_dtype=torch.float32 if half else None,
                                  cast_forward_inputs=False)
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    def dim(parameter: nn.Parameter) -> Shard:
        taken = plan[names[id(parameter)]].placements
        free = next((d for d in range(parameter.ndim) if d not in taken.values()), 0)
        return Shard(taken.get("fsdp", free))

    task = Task(model)
    for block in blocks_of(model):
        experts = [module for name, module in block.named_modules()
                   if name.endswith(".experts") and _cut_by_ep(module, plan, names)]
        for module in experts:
            fully_shard(module, mesh=mesh.expert_fsdp, mp_policy=policy, shard_placement_fn=dim)
        fully_shard(block, mesh=mesh.fsdp, mp_policy=policy, shard_placement_fn=dim)
    # The head and the embedding stay float32 where they are read, as they do in one process under autocast.
    fully_shard(task, mesh=mesh.fsdp, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False), shard_placement_fn=dim)
    for module in task.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    if parameter_device.type != "meta":
        model.to(device)
    return task


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The model's layers: its longest list of modules. Raises ModelError for a model that has none."""
    lists = [list(module) for module in model.base_model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise ModelError(f"{type(model).__name__} has no list of layers to cut; train it on one process")
    return max(lists, key=len)


def describe(model: nn.Module) -> dict[str, dict[str, Any]]:
    """What this process really holds: parameter -> its placements by mesh axis, and the local shape."""
    found = {}
    for name, parameter in model.named_parameters():
        over = parameter.device_mesh if isinstance(parameter, DTensor) else None
        placements = {} if over is None else {
            axis.replace("expert_", ""): placement.dim
            for axis, placement in zip(over.mesh_dim_names, parameter.placements, strict=True)
            if hasattr(placement, "dim") and over.size(over.mesh_dim_names.index(axis)) > 1}
        part = parameter.to_local() if over is not None else parameter
        found[name] = {"shape": list(parameter.shape), "placements": placements, "local": list(part.shape)}
    return found


def _cut_by_ep(module: nn.Module, plan: dict[str, Sharding], names: dict[int, str]) -> bool:
    return any("ep" in plan[names[id(parameter)]].placements for parameter in module.parameters(recurse=False))


def _check_heads(model: nn.Module, mesh: Mesh) -> None:
    heads, tp, cp = model.config.num_attention_heads, mesh.sizes["tp"], mesh.sizes["cp"]
    local = heads // tp if heads % tp == 0 else heads
    if local % cp:
        raise ModelError(f"mesh cp {cp} does not divide the {local} attention heads of a process; set cp to a divisor")

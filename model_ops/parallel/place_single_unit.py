"""A small model onto a mesh: copies and FSDP shards of what is trained, gathered as one for a step.

    task = place_single_unit(drafter, mesh)          # its trained parameters are now DTensors, each process's part
    total, count, metrics, counts = task(loss, drafter, batch)

For drafters. They are a block or a few in size, and their parts are read from outside their own forwards (a training forward
walks through a layer by hand), so there is no block to gather and free by itself. Logical axes and rules say which
dimension is cut (model_ops.parallel.sharding); dp_replicate and dp_shard are the axes that do. What is frozen, an
embedding of the target's, stays whole everywhere: it would be gathered for the whole of every step. Between processes
go float32 values, so a step computes what one process computes: products are rounded by autocast alone. Gradients are
summed; the trainer divides once, by the tokens of all processes.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

from model_ops.errors import ModelError
from model_ops.parallel.mesh import Mesh
from model_ops.parallel.place import Task, refuse_another_model
from model_ops.parallel.sharding import plan_sharding


def place_single_unit(model: nn.Module, mesh: Mesh) -> Task:
    """Cuts `model`, which lies on its device in every process, in place; the first process's values are everybody's.

    Raises ModelError for a mesh with other axes than copies and shards, and where the processes' models differ.
    """
    others = [axis for axis in ("cp", "ep", "tp") if mesh.sizes[axis] > 1]
    if others:
        raise ModelError(f"mesh {others[0]} {mesh.sizes[others[0]]} cannot cut {type(model).__name__}, which is gathered as "
                         f"one: set {others[0]} to 1 and use dp_shard or dp_replicate")
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    refuse_another_model(shapes)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)  # copies that were computed alike need not be alike to the last bit
    plan = plan_sharding(shapes, model.config, mesh.settings)
    dims = {parameter: plan[name].placements.get("fsdp", 0) for name, parameter in model.named_parameters()}
    task = Task(model)
    fully_shard(task, mesh=mesh.fsdp, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False),
                shard_placement_fn=lambda parameter: Shard(dims[parameter]),
                ignored_params={parameter for parameter in dims if not parameter.requires_grad})
    task.set_gradient_divide_factor(1.0)
    task.set_force_sum_reduction_for_comms(True)
    return task

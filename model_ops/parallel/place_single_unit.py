"""Shards a small model (a drafter) over a mesh as a single FSDP unit, which is gathered once for each step.

    task = place_single_unit(drafter, mesh)          # its trained parameters are now DTensors
    total, count, metrics, counts = task(loss, drafter, batch)

A drafter has one block or a few, and training code reads its layers from outside their forwards, so FSDP cannot gather and free
single blocks. Logical axes and rules choose the sharded dimension (model_ops.parallel.sharding); only dp_replicate and dp_shard
are supported. Frozen parameters, such as the target's embedding, are not sharded, because they would be gathered for every step
anyway. Communication is in float32, so a step computes the same as one process; only autocast rounds. Gradients are summed; the
trainer divides once, by the tokens of all processes.
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
    """Shards `model`, which every process has on its device, in place, with the values of the first process.

    Raises ModelError for a mesh with cp, ep or tp, and if the processes' models differ.
    """
    others = [axis for axis in ("cp", "ep", "tp") if mesh.sizes[axis] > 1]
    if others:
        raise ModelError(f"mesh {others[0]} {mesh.sizes[others[0]]} is not supported for {type(model).__name__}: set "
                         f"{others[0]} to 1 and use dp_shard or dp_replicate")
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    refuse_another_model(shapes)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)  # values computed on each process may differ in the last bit
    plan = plan_sharding(shapes, model.config, mesh.settings)
    dims = {parameter: plan[name].placements.get("fsdp", 0) for name, parameter in model.named_parameters()}
    task = Task(model)
    fully_shard(task, mesh=mesh.fsdp, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False),
                shard_placement_fn=lambda parameter: Shard(dims[parameter]),
                ignored_params={parameter for parameter in dims if not parameter.requires_grad})
    task.set_gradient_divide_factor(1.0)
    task.set_force_sum_reduction_for_comms(True)
    return task

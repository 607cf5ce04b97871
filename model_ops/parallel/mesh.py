"""Device meshes of a run for FSDP, tensor, context and expert parallelism.

    mesh = Mesh.over(MeshSettings(dp_shard=2, tp=2), "cpu")      # on every process, once its group is initialised

The same processes form three meshes: (dp_replicate, fsdp, tp) for parameters, (dp_replicate, fsdp of experts, ep, tp) for
experts under ep, and one by axis for processes that share rows. tp is innermost, so its processes are on one machine if they
fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from model_ops.jobs import ModelError
from model_ops.parallel.context_parallel import Context
from model_ops.parallel.mesh_settings import MESH_AXES, MeshSettings
from model_ops.parallel.tensor_parallel import TensorMesh


@dataclass(frozen=True, eq=False)
class Mesh:
    """The meshes of a run, and this process's position: `sizes` and `place` by axis."""

    settings: MeshSettings
    sizes: dict[str, int]
    place: dict[str, int]
    fsdp: DeviceMesh
    """Axes (fsdp), or (dp_replicate, fsdp)."""
    expert_fsdp: DeviceMesh
    """Like `fsdp`, without ep."""
    tensor: TensorMesh
    context: Context | None
    tokens: dist.ProcessGroup
    """The group of processes with different tokens: all axes except tp."""

    @classmethod
    def over(cls, settings: MeshSettings, device_type: str) -> Mesh:
        """The meshes of the settings. Raises ModelError if the process group has another size."""
        settings = settings.resolved()
        sizes = settings.sizes()
        processes = dist.get_world_size()
        if processes != settings.processes:
            asked = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "one process"
            raise ModelError(
                f"the mesh has {settings.processes} processes ({asked}), but this run has {processes}: "
                f"start as many as the mesh has, or change the mesh"
            )
        replicate, shard, cp, ep, tp = (sizes[axis] for axis in ("dp_replicate", "dp_shard", "cp", "ep", "tp"))
        row = init_device_mesh(device_type, (processes,), mesh_dim_names=("processes",))
        dense = row._unflatten(0, (replicate, shard * cp * ep, tp), ("dp_replicate", "fsdp", "tp"))
        experts = row._unflatten(0, (replicate, shard * cp, ep, tp), ("dp_replicate", "expert_fsdp", "ep", "expert_tp"))
        place, rest = {}, dist.get_rank()
        for axis in reversed(MESH_AXES):
            rest, place[axis] = divmod(rest, sizes[axis])
        context = None
        if cp > 1:
            rows = row._unflatten(0, (replicate * shard, cp, ep * tp), ("rows", "cp", "beside"))
            context = Context(rows["cp"].get_group(), place["cp"], cp)
        tokens = row._unflatten(0, (processes // tp, tp), ("tokens", "same_tokens"))
        names = ("dp_replicate", "fsdp") if replicate > 1 else ("fsdp",)
        expert_names = ("dp_replicate", "expert_fsdp") if replicate > 1 else ("expert_fsdp",)
        return cls(
            settings,
            sizes,
            place,
            dense[names],
            experts[expert_names],
            TensorMesh(
                dense["tp"] if tp > 1 else None,
                experts["ep"] if ep > 1 else None,
                experts["ep", "expert_tp"] if ep > 1 and tp > 1 else None,
            ),
            context,
            tokens["tokens"].get_group(),
        )

    @property
    def multiple(self) -> int:
        """The number that the token count of a row is padded to a multiple of."""
        return self.sizes["cp"] * self.sizes["tp"]

    @property
    def data_rank(self) -> int:
        """Index of this process's share of the rows, over dp_replicate, dp_shard and ep."""
        place, sizes = self.place, self.sizes
        return (place["dp_replicate"] * sizes["dp_shard"] + place["dp_shard"]) * sizes["ep"] + place["ep"]

    @property
    def data_ranks(self) -> int:
        return self.sizes["dp_replicate"] * self.sizes["dp_shard"] * self.sizes["ep"]

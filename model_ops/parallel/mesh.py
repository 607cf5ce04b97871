"""The processes of a run laid out as a mesh: which of them gather weights, cut matrices, share rows or experts.

    mesh = Mesh.over(MeshSettings(dp_shard=2, tp=2), "cpu")      # on every process, once its group is initialised

One row of processes is folded in three ways: (dp_replicate, fsdp, tp) for parameters, (dp_replicate, fsdp of experts,
ep, tp) for experts that ep cuts, and by axis for what is shared among rows. tp is innermost: its processes are
neighbours, on one machine where it fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from model_ops.errors import ModelError
from model_ops.parallel.context_parallel import Context
from model_ops.parallel.mesh_settings import MESH_AXES, MeshSettings
from model_ops.parallel.tensor_parallel import TensorMesh


@dataclass(frozen=True, eq=False)
class Mesh:
    """All folds of the processes, and where this one stands: `sizes` and `place` by axis."""

    settings: MeshSettings
    sizes: dict[str, int]
    place: dict[str, int]
    fsdp: DeviceMesh
    """(fsdp), or (dp_replicate, fsdp)."""
    expert_fsdp: DeviceMesh
    """The same without ep."""
    tensor: TensorMesh
    context: Context | None
    tokens: dist.ProcessGroup
    """The processes that hold different tokens: all but those of tp."""

    @classmethod
    def over(cls, settings: MeshSettings, device_type: str) -> Mesh:
        """Raises ModelError where the process group has another size than the mesh."""
        settings = settings.resolved()
        sizes = settings.sizes()
        processes = dist.get_world_size()
        if processes != settings.processes:
            asked = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "one process"
            raise ModelError(f"the mesh is of {settings.processes} processes ({asked}), this run has {processes}: "
                             f"start as many as the mesh has, or change it")
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
            settings, sizes, place, dense[names], experts[expert_names],
            TensorMesh(dense["tp"] if tp > 1 else None, experts["ep"] if ep > 1 else None,
                       experts["ep", "expert_tp"] if ep > 1 and tp > 1 else None),
            context, tokens["tokens"].get_group(),
        )

    @property
    def multiple(self) -> int:
        """What the tokens of a row are padded to a multiple of."""
        return self.sizes["cp"] * self.sizes["tp"]

    @property
    def data_rank(self) -> int:
        """Which share of the rows is this process's: counted over dp_replicate, dp_shard and ep."""
        place, sizes = self.place, self.sizes
        return (place["dp_replicate"] * sizes["dp_shard"] + place["dp_shard"]) * sizes["ep"] + place["ep"]

    @property
    def data_ranks(self) -> int:
        return self.sizes["dp_replicate"] * self.sizes["dp_shard"] * self.sizes["ep"]

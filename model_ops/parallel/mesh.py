"""Device meshes of a run. The same processes form three: (dp_replicate, fsdp, tp) for parameters, (dp_replicate, fsdp of
experts, ep, tp) for experts under ep, and one by axis for processes that share rows, also by context. tp is innermost, so its
processes are on one machine if they fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from model_ops.jobs import ModelError
from model_ops.parallel.collectives import heads_to_tokens, tokens_to_heads
from model_ops.parallel.mesh_settings import MESH_AXES, MeshSettings
from model_ops.parallel.tensor_parallel import TensorMesh
from model_ops.tensors import AnyBatch


@dataclass(frozen=True, eq=False)
class Context:
    """The processes that share a row's tokens."""

    group: dist.ProcessGroup
    rank: int
    size: int

    def attend(
        self,
        attention: Callable[..., tuple[Tensor, None]],
        module: nn.Module,
        query: Float[Tensor, "1 heads share head_dim"],
        key: Float[Tensor, "1 kv_heads share head_dim"],
        value: Float[Tensor, "1 kv_heads share value_dim"],
        *arguments: Any,
        s_aux: Tensor | None = None,
        **options: Any,
    ) -> tuple[Float[Tensor, "1 share heads value_dim"], None]:
        """`attention` over all tokens of this process's heads. s_aux: per-head sinks, sharded like the heads."""
        repeated = self.size // math.gcd(self.size, key.shape[1])
        if repeated > 1:
            key, value = (stream.repeat_interleave(repeated, dim=1) for stream in (key, value))
        query, key, value = (tokens_to_heads(stream, self.group) for stream in (query, key, value))
        if s_aux is not None:
            options["s_aux"] = s_aux.chunk(self.size)[self.rank]
        attended, _ = attention(module, query, key, value, *arguments, **options)
        return heads_to_tokens(attended.transpose(1, 2), self.group).transpose(1, 2), None


def pad(batch: AnyBatch, multiple: int) -> AnyBatch:
    """Pads a batch with a document without labels, so that its number of tokens is a multiple of `multiple`."""
    missing = -batch.tokens % multiple
    if missing == 0:
        return batch
    streams = {name: getattr(batch, name) for name in batch.paddings()}
    padded = {
        name: F.pad(value, (*(0, 0) * (value.ndim - 1), 0, missing), value=batch.paddings()[name])
        for name, value in streams.items()
    }
    padded["position_ids"] = torch.cat([batch.position_ids, torch.arange(missing, device=batch.position_ids.device)])
    prefixes = batch.document_prefixes and [*batch.document_prefixes, (0, 0)]
    return replace(batch, **padded, document_lengths=[*batch.document_lengths, missing], document_prefixes=prefixes)


def cut(batch: AnyBatch, context: Context) -> AnyBatch:
    """This process's tokens of a batch that was padded to a multiple of the processes; document_lengths still describe the
    whole row."""
    share = batch.tokens // context.size
    mine = slice(context.rank * share, (context.rank + 1) * share)
    return replace(batch, **{name: getattr(batch, name)[mine] for name in batch.paddings()}, context=context)


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

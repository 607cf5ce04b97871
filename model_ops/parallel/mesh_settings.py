"""Settings of a mesh: number of processes of a stage by axis. Importing this file imports no torch."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from model_ops.jobs import Settings

MESH_AXES = ("dp_replicate", "dp_shard", "cp", "ep", "tp")
"""The axes of a mesh, outermost first; processes that differ only in the last one have consecutive ranks."""


MOST_PROCESSES = 65_536
"""Upper bound that catches typing errors."""


class MeshSettings(Settings):
    """Processes that a stage trains on: one, unless axes are given. Their product is the number of processes."""

    processes: int | None = Field(
        None, ge=1, le=MOST_PROCESSES, description="Number of processes. Left out: the product of the axes"
    )
    dp_replicate: int = Field(
        1, ge=1, le=MOST_PROCESSES, description="Groups of processes, each of which holds the whole model (HSDP)"
    )
    dp_shard: int | None = Field(
        None,
        ge=-1,
        le=MOST_PROCESSES,
        description="Processes that share one copy of the model and read different rows "
        "(FSDP). -1: as left out, and `processes` defaults to the machine's accelerators. Left out: what the other axes "
        "leave of `processes`",
    )
    cp: int = Field(
        1, ge=1, le=MOST_PROCESSES, description="Processes that split the tokens of a row (context parallelism, Ulysses)"
    )
    tp: int = Field(1, ge=1, le=MOST_PROCESSES, description="Processes that split the weight matrices (tensor parallelism)")
    ep: int = Field(
        1, ge=1, le=MOST_PROCESSES, description="Processes that split the experts and read different rows (expert parallelism)"
    )
    restarts: int = Field(
        0,
        ge=0,
        le=1000,
        description="How often to restart all processes from the newest checkpoint after one was killed. "
        "An error of the training itself ends the run",
    )

    @field_validator("dp_shard")
    @classmethod
    def _no_empty_axis(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("dp_shard is a number of processes, or -1 for what the other axes leave")
        return value

    @model_validator(mode="after")
    def _divides(self):
        if self.processes is not None:
            self.resolved()
        return self

    def resolved(self, accelerators: int = 0) -> MeshSettings:
        """The mesh with `processes` and `dp_shard` as numbers. accelerators: number of them in this machine. Raises ValueError
        for a mesh whose axes do not divide its processes."""
        others = self.dp_replicate * self.cp * self.tp * self.ep
        wanted = self.processes
        if wanted is None and self.dp_shard == -1:
            if accelerators == 0:
                raise ValueError("dp_shard is -1, but this machine has no accelerators to count: give processes too")
            wanted = accelerators
        named = (
            " x ".join(f"{axis} {getattr(self, axis)}" for axis in MESH_AXES if axis != "dp_shard" and getattr(self, axis) > 1)
            or "the other axes"
        )
        if self.dp_shard in (None, -1):
            share, left = divmod(wanted or others, others)
            if left or share == 0:
                raise ValueError(f"{wanted} processes are not a multiple of {others} ({named}): change the mesh or processes")
        else:
            share = self.dp_shard
            if wanted is not None and share * others != wanted:
                raise ValueError(
                    f"dp_shard {share} times {others} ({named}) is {share * others}, but processes is {wanted}: "
                    "change one of them"
                )
        return self.model_copy(update={"processes": share * others, "dp_shard": share})

    @property
    def alone(self) -> bool:
        """Whether it is one process, whatever the machine."""
        return self.dp_shard != -1 and self.resolved().processes == 1

    def sizes(self) -> dict[str, int]:
        """Size of every axis, outermost first."""
        whole = self.resolved()
        return {axis: getattr(whole, axis) for axis in MESH_AXES}

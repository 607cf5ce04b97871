"""Predicts the memory of each device for one training setup. Imports no torch.

    memory = memory_of(needs, Setup(MeshSizes(dp_shard=8), 4_096, "full"), DEVICES["h100"])
    memory.total

Memory per device, in bytes:

    weights      float32 where trained; where frozen, in the precision of the products (0.52 bytes as nf4); over dp_shard x cp
                 x ep and tp
    gradients    float32, of trained weights, sharded in the same way
    optimizer    AdamW 2 x float32, in 8 bits 2 x 1.02, Muon 1 x float32 for matrices
    saved        activations that all blocks save for the backward pass, from a trace of the model's code (step_trace)
    at work      other tensors at the peak: the loss at the head, or the backward pass of a block; where the model answers
                 prompts meanwhile (rft), its copy that decodes and the cache, if these are more
    gathered     FSDP: two unsharded blocks, one block's gradients, the embedding and the head
    teacher      distillation only: its frozen weights
    device       driver, libraries and process groups
    spare        fragmentation: 5 % of what is allocated and freed during a step; on a CPU 85 % of the activations

`needs.trace` traces the model (step_trace)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Literal, Protocol

from model_ops.machine import Device
from model_ops.training import ActivationCheckpointing

GIB = 2**30
Method = Literal["full", "lora", "qlora"]

BYTES_TRAINED, BYTES_FROZEN, BYTES_NF4 = 4.0, 2.0, 0.52
"""Bytes per weight: float32, bfloat16, and nf4 with a doubly quantized scale every 64 weights (0.5 + 1/64 + 4/16,384)."""
OPTIMIZER_BYTES = {"adamw": 8.0, "adamw_8bit": 2.04, "muon": 4.0}
OUTER_OPTIMIZER_BYTES = {"adamw": 8.0, "adamw_8bit": 2.04, "muon": 8.0}
"""Optimizer bytes per trained weight of embeddings and head; with Muon, AdamW updates these."""

DEVICE_GIB = 0.8
"""A CUDA context with cuBLAS workspaces."""
PROCESS_GROUP_GIB = 1.0
"""NCCL's buffers, if there is more than one device."""
CPU_PROCESS_GIB = 0.6
"""Python with torch and transformers imported."""
FRAGMENTATION = 0.05
HEAP_FRAGMENTATION = 0.85
"""The same of activations on a CPU: glibc keeps what a step frees (model_ops.machine.process), and rarely gives a block to an
aligned request of the same size. From three trainings, of which one
full held 1.7 and two with adapters 1.9 and 2.1 times what lives then; with full checkpointing it was more."""


class Memory(Protocol):
    """model_ops.planning.step_trace.MicroBatchMemory."""

    @property
    def saved(self) -> int: ...

    def peak(self, layers: int, accumulating: bool) -> int: ...
    def beyond_gradients(self, layers: int) -> int: ...


@dataclass(frozen=True)
class WeightCounts:
    """Numbers of weights: in one block, in its experts, outside the blocks, and in the adapters of one block."""

    layers: int
    block: int
    block_linear: int
    outer: int
    adapters: int = 0
    experts: int = 0

    @property
    def all(self) -> int:
        return self.layers * self.block + self.outer


@dataclass(frozen=True)
class MeshSizes:
    """Sizes of the axes, as MeshSettings names them."""

    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    ep: int = 1
    tp: int = 1

    @property
    def processes(self) -> int:
        return self.dp_replicate * self.dp_shard * self.cp * self.ep * self.tp

    @property
    def shards(self) -> int:
        """Number of processes over which FSDP shards each weight."""
        return self.dp_shard * self.cp * self.ep

    @property
    def data_ranks(self) -> int:
        return self.dp_replicate * self.dp_shard * self.ep

    def axes(self) -> dict[str, int]:
        """Axes with a size above 1."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) > 1}

    def __str__(self) -> str:
        return ", ".join(f"{name} {size}" for name, size in self.axes().items()) or "one process"


@dataclass(frozen=True)
class Setup:
    """One training setup."""

    mesh: MeshSizes
    micro_batch_tokens: int
    checkpointing: ActivationCheckpointing
    offload: bool = False


Trace = Callable[[int, ActivationCheckpointing, int], Memory]
"""(tokens in one process, checkpointing, tp) -> memory of a micro-batch."""


@dataclass(frozen=True)
class Needs:
    """The model and training to plan. flops: tokens of a row -> needed operations per token."""

    name: str
    method: Method
    counts: WeightCounts
    hidden: int
    heads: int
    kv_heads: int
    max_length: int
    tokens_per_step: int
    trace: Trace
    flops_per_token: float
    attention_flops: float
    """Those of attention, per token; part of flops_per_token."""
    moved_bytes: float
    """Bytes that layers between matrix products read and write, per token."""
    forward_share: float
    """Share of these operations that one more forward pass adds."""
    optimizer: str = "adamw"
    micro_batch_tokens: int | None = None
    sharded_trace: Trace | None = None
    teacher: int = 0
    frozen_bytes: float = BYTES_FROZEN
    """Bytes of a frozen weight."""
    sampling: float = 0.0
    """Bytes of what samples answers between steps."""
    num_experts: int = 0
    other_methods: tuple[Callable[[], Needs], ...] = ()
    """The same model with cheaper methods, the one that saves least first."""
    fixed: Setup | None = None
    """The setup that the recipe fixes; it is predicted as it is."""

    def with_length(self, max_length: int) -> Needs:
        return replace(self, max_length=max_length, micro_batch_tokens=None)


@dataclass(frozen=True)
class MemoryOf:
    """Bytes per device by purpose, as the module's docstring lists them."""

    weights: float
    gradients: float
    optimizer: float
    saved: float
    at_work: float
    gathered: float
    teacher: float
    device: float
    spare: float

    @property
    def total(self) -> float:
        return sum(getattr(self, f.name) for f in fields(self))

    def as_gib(self) -> dict[str, float]:
        return {**{f.name: round(getattr(self, f.name) / GIB, 3) for f in fields(self)}, "total": round(self.total / GIB, 3)}


@dataclass(frozen=True)
class MemoryPlan:
    """The chosen setup, its memory and speed, and the reasons."""

    needs: Needs
    count: int
    device: Device
    setup: Setup
    memory: MemoryOf
    tokens_per_second: float | None
    reasons: tuple[str, ...] = field(default=())


def memory_of(needs: Needs, setup: Setup, device: Device) -> MemoryOf:
    """The predicted memory of one device."""
    counts, mesh = needs.counts, setup.mesh
    sharded = mesh.shards > 1
    tokens = setup.micro_batch_tokens // mesh.cp
    trace = needs.sharded_trace if sharded and needs.sharded_trace is not None else needs.trace
    traced = trace(tokens, setup.checkpointing, mesh.tp)
    cut = mesh.shards * mesh.tp
    trained_block = counts.block if needs.method == "full" else counts.adapters
    trained = counts.layers * trained_block + (counts.outer if needs.method == "full" else 0)
    if needs.method == "full":
        weights = BYTES_TRAINED * counts.all / cut
    elif needs.method == "lora":
        weights = (needs.frozen_bytes * counts.all + BYTES_TRAINED * counts.layers * counts.adapters) / cut
    else:
        four_bit = counts.layers * counts.block_linear
        weights = (BYTES_NF4 * four_bit + BYTES_FROZEN * (counts.all - four_bit) + BYTES_TRAINED * trained) / mesh.tp
    outer = counts.outer if needs.method == "full" else 0
    optimizer = (OPTIMIZER_BYTES[needs.optimizer] * (trained - outer) + OUTER_OPTIMIZER_BYTES[needs.optimizer] * outer) / cut
    gradients = BYTES_TRAINED * trained / cut
    saved: float = traced.saved * counts.layers
    all_at_work: float = traced.beyond_gradients(counts.layers)
    if not sharded and needs.tokens_per_step <= setup.micro_batch_tokens * mesh.data_ranks:
        # Gradients appear while saved activations are freed: if gradients outweigh them, the peak comes after they are gone.
        all_at_work = max(0.0, traced.peak(counts.layers, accumulating=False) - gradients)
        saved = min(saved, all_at_work)
    at_work = max(0.0, all_at_work - saved, needs.sampling - saved - gradients)
    if setup.offload:
        stream = 2 if needs.method != "full" else 4
        moved = min(traced.saved, tokens * needs.hidden * stream)
        saved -= moved * max(0, counts.layers - 2)  # one on its way out, one on its way back
    gathered = 0.0
    if sharded:
        whole = BYTES_TRAINED if needs.method == "full" else BYTES_FROZEN
        block = (counts.block - counts.experts * (1 - 1 / mesh.ep)) / mesh.tp
        gathered = 2 * BYTES_FROZEN * block + whole * counts.outer / mesh.tp
        if needs.method == "full":
            gathered += (BYTES_FROZEN + BYTES_TRAINED) * block + 2 * BYTES_TRAINED * counts.outer / mesh.tp
    own = CPU_PROCESS_GIB if device.is_cpu else DEVICE_GIB + (PROCESS_GROUP_GIB if mesh.processes > 1 else 0)
    blocks = saved + at_work
    spare = HEAP_FRAGMENTATION * blocks if device.is_cpu else FRAGMENTATION * (gradients + blocks + gathered)
    return MemoryOf(weights, gradients, optimizer, saved, at_work, gathered, needs.teacher * BYTES_TRAINED, own * GIB, spare)

"""The fastest way to train that fits a number of devices, or the nearest thing that does.

    plan = choose(needs, count=8, device=DEVICES["h100"])
    plan.setup.mesh, plan.memory.total, plan.tokens_per_second, plan.reasons

Every candidate (devices used x mesh axes x tokens of a micro-batch x checkpointing x offload) gets an estimated speed
(memory_plan); the fastest whose predicted memory fits is taken, with two rules of thrift:

- Twice as many devices are used only where they train at least a fifth faster (WORTH_DOUBLING).
- Tensor parallelism that leaves a process less than 1,024 of the hidden size (LEAST_WIDTH) is taken only where nothing else
  fits: products that narrow leave a device idle, and four collectives a block cost more than they save.

Where none fits, NothingFits names what is missing, and of cheaper methods, more devices and shorter rows those that do fit.
Imports no torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from model_ops.devices import Device
from model_ops.planning.memory_plan import GIB, Mesh, Needs, Plan, Setup, memory_of
from model_ops.planning.reasons import reasons_for
from model_ops.planning.speed import is_thin, speed_of, tokens_per_second

PLANNED_FOR = 0.95
"""Of a device's memory; the rest is for what a prediction does not see."""
WORTH_DOUBLING = 1.2
"""How much faster twice as many devices have to be."""


class NothingFits(Exception):
    """No candidate fits; the message names what is missing and the nearest things that fit."""


def candidates(needs: Needs, count: int, device: Device) -> Iterator[Setup]:
    """Every setup worth a look, on all devices or on an even part of them."""
    for mesh in itertools.chain.from_iterable(meshes(needs, used, device) for used in _divisors(count)):
        for tokens in micro_batches(needs, mesh):
            for checkpointing in ("none", "selective", "full"):
                yield Setup(mesh, tokens, checkpointing)
            if not device.is_cpu:
                yield Setup(mesh, tokens, "full", offload=True)


def meshes(needs: Needs, count: int, device: Device) -> Iterator[Mesh]:
    """Products of axes that give `count`: tp within a node and over whole heads, cp over what heads are left, ep over
    whole experts. A 4-bit base is not cut: each process holds it."""
    if needs.method == "qlora":
        yield Mesh(dp_replicate=count)
        return
    for tp, cp, ep in itertools.product(_divisors(count), repeat=3):
        if count % (tp * cp * ep) or tp > device.per_node or needs.heads % tp or (needs.heads // tp) % cp:
            continue
        if ep > 1 and (needs.num_experts == 0 or needs.num_experts % ep):
            continue
        left = count // (tp * cp * ep)
        for dp_shard in _divisors(left):
            yield Mesh(left // dp_shard, dp_shard, cp, ep, tp)


def micro_batches(needs: Needs, mesh: Mesh) -> list[int]:
    """Tokens of a micro-batch: one row of max_length at least, or several of them laid together."""
    if needs.micro_batch_tokens is not None:
        return [needs.micro_batch_tokens]
    most = max(needs.max_length, min(needs.tokens_per_step // mesh.data_ranks, 16_384))
    sizes = {needs.max_length}
    size = needs.max_length
    while size * 2 <= most:
        size *= 2
        sizes.add(size)
    return sorted(sizes)


def choose(needs: Needs, count: int, device: Device, alternatives: bool = True) -> Plan:
    """The fastest setup that fits, by the estimates and rules above. Raises NothingFits."""
    if needs.fixed is not None:
        ways = [needs.fixed]
    else:
        ways = sorted(candidates(needs, count, device),
                      key=lambda setup: (is_thin(needs, setup), -round(worth_of(needs, setup, device), 6),
                                         setup.mesh.processes, setup.mesh.tp, setup.mesh.cp, -setup.mesh.dp_shard))
    room, least = PLANNED_FOR * device.memory_gib * GIB, None
    for setup in ways:
        if _least(needs, setup, device) > room:
            continue
        memory = memory_of(needs, setup, device)
        if memory.total <= room:
            return Plan(needs, count, device, setup, memory, tokens_per_second(needs, setup, device),
                        tuple(reasons_for(needs, setup, device, memory, count)))
        if least is None or memory.total < least[0]:
            least = (memory.total, setup)
    if least is None:
        least = min(((memory_of(needs, setup, device).total, setup) for setup in
                     [max(ways, key=lambda s: (s.mesh.shards * s.mesh.tp, s.checkpointing == "full", -s.micro_batch_tokens,
                                               s.offload))]), key=lambda pair: pair[0])
    raise NothingFits(_refusal(needs, count, device, least[0], alternatives))


def worth_of(needs: Needs, setup: Setup, device: Device) -> float:
    """Estimated speed of all devices used together, less what using more of them has to bring."""
    used = setup.mesh.processes
    return speed_of(needs, setup, device) * used / used ** math.log2(WORTH_DOUBLING)


def _least(needs: Needs, setup: Setup, device: Device) -> float:
    """What a setup takes at the very least, without running anything: weights, gradients and optimizer."""

    class Nothing:
        kept = 0

        def peak(self, layers: int, accumulating: bool) -> int:
            return 0

        def beyond_gradients(self, layers: int) -> int:
            return 0

    return memory_of(replace(needs, trace=lambda *_: Nothing(), sharded_trace=None), setup, device).total


def _refusal(needs: Needs, count: int, device: Device, least: float, alternatives: bool) -> str:
    what = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}[needs.method]
    text = (f"{needs.name}: {what} at {needs.max_length:,} tokens does not fit {_devices(count, device)} "
            f"(needs at least {least / GIB:,.0f} GiB of {device.memory_gib:.0f} on each)")
    if not alternatives:
        return text
    found = [way for way in (_cheaper_method(needs, count, device), _more_devices(needs, count, device),
                             _shorter(needs, count, device)) if way]
    nothing = "no cheaper method and no shorter row" if device.is_cpu else "no larger number of these devices up to 1,024"
    return text + (": " + "; or ".join(found) if found else f"; {nothing} does either")


def _cheaper_method(needs: Needs, count: int, device: Device) -> str | None:
    for other in (make() for make in needs.other_methods):
        try:
            plan = choose(other, count, device, alternatives=False)
        except NothingFits:
            continue
        return f"{ {'lora': 'LoRA', 'qlora': 'QLoRA'}[other.method]} does ({_said(plan)})"
    return None


def _more_devices(needs: Needs, count: int, device: Device) -> str | None:
    if device.is_cpu:
        return None
    more = 2 ** count.bit_length()
    while more <= 1024:
        try:
            plan = choose(needs, more, device, alternatives=False)
        except NothingFits:
            more *= 2
            continue
        return f"{_devices(more, device)} do ({_said(plan)})"
    return None


def _shorter(needs: Needs, count: int, device: Device) -> str | None:
    length = needs.max_length // 2
    while length >= 512:
        try:
            plan = choose(needs.with_length(length), count, device, alternatives=False)
        except NothingFits:
            length //= 2
            continue
        return f"max_length {length:,} does ({_said(plan)})"
    return None


def _said(plan: Plan) -> str:
    parts = [f"{plan.memory.total / GIB:,.0f} GiB"]
    if plan.setup.mesh.processes > 1:
        parts.append(str(plan.setup.mesh))
    if plan.setup.checkpointing != "none":
        parts.append(f"{plan.setup.checkpointing} activation checkpointing" + (" with offload" if plan.setup.offload else ""))
    return ", ".join(parts)


def _devices(count: int, device: Device) -> str:
    return "this machine" if device.is_cpu else f"{count}x{device.name}"


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


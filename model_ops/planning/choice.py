"""Chooses the fastest training setup (devices used x mesh axes x tokens of a micro-batch x checkpointing x offload) whose
predicted memory fits, and explains it. Twice as many devices are used only if they train a fifth faster (WORTH_DOUBLING), and
less than LEAST_WIDTH of the hidden size on a process only if nothing else fits. Imports no torch."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from model_ops.jobs import CheckFailed, counted
from model_ops.machine import Device, rates_of
from model_ops.planning.memory_plan import GIB, MemoryOf, MemoryPlan, MeshSizes, Needs, Setup, memory_of
from model_ops.training import ActivationCheckpointing

SPEED = {"selective": 0.95, "offload": 0.97, "tp": 0.90, "cp": 0.95, "sharded": 0.97, "across nodes": 0.93}
"""Factor on the speed for each choice; tp and cp per doubling. Full checkpointing costs one more forward pass."""
TOKENS_TO_HALF_SPEED = 192
"""Tokens per device in a micro-batch at which the speed is 50 % of its limit for large micro-batches."""
BLOCK_SECONDS, COLLECTIVE_SECONDS, STEP_SECONDS = 5e-4, 3e-5, 2e-3
"""Fixed costs in seconds, assumed, not measured: launching the kernels of one block forward and backward (about 100 of 5
microseconds), one collective between devices, and once per step optimizer and clipping."""
COLLECTIVES = {"tp": 4, "cp": 4, "sharded": 3}
"""Collectives of one block, forward and backward, by axis."""
ASSUMED_PEAK_TFLOPS = 150.0
"""Peak assumed for an unknown device when its arithmetic is compared with the fixed costs above."""
LEAST_WIDTH = 1_024
"""Least share of the hidden size per process under tensor parallelism: narrower products leave a device idle, and the
collectives of every block cost more than they save."""


def utilisation(needs: Needs, device: Device) -> float:
    """Model FLOPs utilisation (MFU) before the factors above; 1 on a CPU, whose setups differ by these alone."""
    if device.is_cpu:
        return 1.0
    peak = device.bf16_tflops or ASSUMED_PEAK_TFLOPS
    rates = rates_of(device, peak)
    seconds = (needs.flops_per_token - needs.attention_flops) / rates.matmul_tflops
    seconds += needs.attention_flops / rates.attention_tflops + needs.moved_bytes / rates.copy_tb_s
    return needs.flops_per_token / peak / seconds


def speed_of(needs: Needs, setup: Setup, device: Device) -> float:
    """Estimated share of the devices' peak FLOP/s that needed operations reach; comparable between setups."""
    mesh = setup.mesh
    speed = utilisation(needs, device)
    if setup.checkpointing == "full":
        speed /= 1 + needs.forward_share
    elif setup.checkpointing == "selective":
        speed *= SPEED["selective"]
    speed *= SPEED["offload"] if setup.offload else 1
    speed *= SPEED["tp"] ** (mesh.tp.bit_length() - 1) * SPEED["cp"] ** (mesh.cp.bit_length() - 1)
    speed *= SPEED["sharded"] if mesh.shards > 1 else 1
    speed *= SPEED["across nodes"] if mesh.shards * mesh.tp > device.per_node else 1
    tokens = setup.micro_batch_tokens / mesh.cp
    speed *= tokens / (tokens + TOKENS_TO_HALF_SPEED)
    rows = max(1.0, needs.tokens_per_step / setup.micro_batch_tokens)
    rounds = -(-rows // mesh.data_ranks)
    computing = _computing_seconds(needs, setup, device) / speed
    step = rounds * max(computing, starting_seconds(needs, setup, device)) + (0.0 if device.is_cpu else STEP_SECONDS)
    return speed * rows / (rounds * mesh.data_ranks) * rounds * computing / step


def _computing_seconds(needs: Needs, setup: Setup, device: Device) -> float:
    """Seconds for the operations of a micro-batch on one device at its peak."""
    peak = (device.bf16_tflops or ASSUMED_PEAK_TFLOPS) * 1e12
    return needs.flops_per_token * setup.micro_batch_tokens / (setup.mesh.cp * setup.mesh.tp) / peak


def starting_seconds(needs: Needs, setup: Setup, device: Device) -> float:
    """Fixed costs of a micro-batch in seconds: kernels are launched one after another, however small they are."""
    if device.is_cpu:
        return 0.0
    mesh = setup.mesh
    passes = 4 / 3 if setup.checkpointing == "full" else 1.0
    between = sum(
        count for axis, count in COLLECTIVES.items() if {"tp": mesh.tp, "cp": mesh.cp, "sharded": mesh.shards}[axis] > 1
    )
    return needs.counts.layers * (passes * BLOCK_SECONDS + between * COLLECTIVE_SECONDS)


def is_thin(needs: Needs, setup: Setup) -> bool:
    """Whether tensor parallelism leaves each process less than LEAST_WIDTH of the hidden size."""
    return setup.mesh.tp > 1 and needs.hidden // setup.mesh.tp < LEAST_WIDTH


def is_too_small(needs: Needs, setup: Setup, device: Device) -> bool:
    """Whether launching a micro-batch takes longer than computing it, so that more devices do not help."""
    return _computing_seconds(needs, setup, device) / utilisation(needs, device) < starting_seconds(needs, setup, device)


def tokens_per_second(needs: Needs, setup: Setup, device: Device) -> float | None:
    """Estimated tokens per second of all devices; None if the device's peak is unknown."""
    if device.bf16_tflops is None:
        return None
    return speed_of(needs, setup, device) * setup.mesh.processes * device.bf16_tflops * 1e12 / needs.flops_per_token


PLANNED_FOR = 0.95
"""Share of a device's memory that a plan may use; the rest is a margin for errors of the prediction."""
WORTH_DOUBLING = 1.2
"""Least speedup that justifies twice as many devices."""

LIGHTER: dict[ActivationCheckpointing, ActivationCheckpointing | None]
LIGHTER = {"none": None, "selective": "none", "full": "selective"}
"""Activation checkpointing -> the one that recomputes less."""


class NothingFits(CheckFailed):
    """No candidate fits; the message gives the missing memory and the nearest alternatives that fit."""


def candidates(needs: Needs, count: int, device: Device) -> Iterator[Setup]:
    """Every setup to consider, on all devices or on an even fraction of them."""
    for mesh in itertools.chain.from_iterable(meshes(needs, used, device) for used in _divisors(count)):
        for tokens in micro_batches(needs, mesh):
            for checkpointing in LIGHTER:
                yield Setup(mesh, tokens, checkpointing)
            if not device.is_cpu:
                yield Setup(mesh, tokens, "full", offload=True)


def meshes(needs: Needs, count: int, device: Device) -> Iterator[MeshSizes]:
    """Meshes with `count` processes: tp within a node and over whole heads, cp over the remaining heads, ep over whole
    experts. A 4-bit base model is not sharded: each process holds all of it."""
    if needs.method == "qlora":
        yield MeshSizes(dp_replicate=count)
        return
    for tp, cp, ep in itertools.product(_divisors(count), repeat=3):
        if count % (tp * cp * ep) or tp > device.per_node or needs.heads % tp or (needs.heads // tp) % cp:
            continue
        if ep > 1 and (needs.num_experts == 0 or needs.num_experts % ep):
            continue
        left = count // (tp * cp * ep)
        for dp_shard in _divisors(left):
            yield MeshSizes(left // dp_shard, dp_shard, cp, ep, tp)


def micro_batches(needs: Needs, mesh: MeshSizes) -> list[int]:
    """Sizes of a micro-batch to consider, in tokens: one row of max_length, or several rows."""
    if needs.micro_batch_tokens is not None:
        return [needs.micro_batch_tokens]
    most = max(needs.max_length, min(needs.tokens_per_step // mesh.data_ranks, 16_384))
    sizes = {needs.max_length}
    size = needs.max_length
    while size * 2 <= most:
        size *= 2
        sizes.add(size)
    return sorted(sizes)


def choose(needs: Needs, count: int, device: Device, alternatives: bool = True) -> MemoryPlan:
    """The fastest setup that fits, by the rules in this module's docstring. Raises NothingFits."""
    if needs.fixed is not None:
        ways = [needs.fixed]
    else:
        ways = sorted(
            candidates(needs, count, device),
            key=lambda setup: (
                is_thin(needs, setup),
                -round(worth_of(needs, setup, device), 6),
                setup.mesh.processes,
                setup.mesh.tp,
                setup.mesh.cp,
                -setup.mesh.dp_shard,
            ),
        )
    room, least = PLANNED_FOR * device.memory_gib * GIB, None
    for setup in ways:
        if _least(needs, setup, device) > room:
            continue
        memory = memory_of(needs, setup, device)
        if memory.total <= room:
            return MemoryPlan(
                needs,
                count,
                device,
                setup,
                memory,
                tokens_per_second(needs, setup, device),
                tuple(reasons_for(needs, setup, device, memory, count)),
            )
        if least is None or memory.total < least[0]:
            least = (memory.total, setup)
    if least is None:
        least = min(
            (
                (memory_of(needs, setup, device).total, setup)
                for setup in [
                    max(
                        ways,
                        key=lambda s: (s.mesh.shards * s.mesh.tp, s.checkpointing == "full", -s.micro_batch_tokens, s.offload),
                    )
                ]
            ),
            key=lambda pair: pair[0],
        )
    raise NothingFits(_refusal(needs, count, device, least[0], alternatives))


def worth_of(needs: Needs, setup: Setup, device: Device) -> float:
    """Estimated total speed, discounted so that twice as many devices must bring WORTH_DOUBLING."""
    used = setup.mesh.processes
    return speed_of(needs, setup, device) * used / used ** math.log2(WORTH_DOUBLING)


def _least(needs: Needs, setup: Setup, device: Device) -> float:
    """Lower bound of a setup's memory in bytes, without a trace: weights, gradients and optimizer."""

    class Nothing:
        saved = 0

        def peak(self, layers: int, accumulating: bool) -> int:
            return 0

        def beyond_gradients(self, layers: int) -> int:
            return 0

    return memory_of(replace(needs, trace=lambda *_: Nothing(), sharded_trace=None), setup, device).total


def _refusal(needs: Needs, count: int, device: Device, least: float, alternatives: bool) -> str:
    what = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}[needs.method]
    text = (
        f"{needs.name}: {what} at {needs.max_length:,} tokens does not fit {_devices(count, device)} "
        f"(needs at least {least / GIB:,.0f} GiB of {device.memory_gib:.0f} on each)"
    )
    if not alternatives:
        return text
    ways = [
        way
        for way in (_cheaper_method(needs, count, device), _more_devices(needs, count, device), _shorter(needs, count, device))
        if way
    ]
    nothing = "no cheaper method and no shorter row" if device.is_cpu else "no larger number of these devices up to 1,024"
    return text + (": " + "; or ".join(ways) if ways else f"; {nothing} does either")


def _cheaper_method(needs: Needs, count: int, device: Device) -> str | None:
    for other in (make() for make in needs.other_methods):
        try:
            plan = choose(other, count, device, alternatives=False)
        except NothingFits:
            continue
        return f"{ {'lora': 'LoRA', 'qlora': 'QLoRA'}[other.method] } does ({_said(plan)})"
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


def _said(plan: MemoryPlan) -> str:
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


def reasons_for(needs: Needs, setup: Setup, device: Device, memory: MemoryOf, count: int) -> Iterator[str]:
    """One sentence for each choice. count: number of available devices."""
    mesh, room = setup.mesh, device.memory_gib * GIB
    fits = f"{memory.total / GIB:.1f} of {device.memory_gib:.1f} GiB"
    if needs.fixed is not None:
        yield f"as the recipe says: {mesh}, {setup.micro_batch_tokens:,} tokens at once take {fits}"
        return
    if mesh.processes < count:
        yield _why_fewer(needs, setup, device, count)
    if mesh.processes == 1:
        yield f"mesh: one process; the model and its optimizer fit ({fits})"
    if mesh.dp_replicate > 1 and mesh.shards == 1 and mesh.tp == 1:
        yield f"dp_replicate {mesh.dp_replicate}: a whole copy fits on each device, so only gradients travel"
    elif mesh.dp_replicate > 1 and mesh.shards == 1:
        yield f"dp_replicate {mesh.dp_replicate}: copies of the model, each on {mesh.tp} devices"
    elif mesh.dp_replicate > 1:
        yield f"dp_replicate {mesh.dp_replicate}: copies of the model; weights are gathered only within each copy"
    if mesh.shards > 1:
        share = memory.weights + memory.gradients + memory.optimizer
        over = ", too much for one device" if share * mesh.shards > room else ""
        axes = " and ".join(f"{name} {mesh.axes()[name]}" for name in ("dp_shard", "cp", "ep") if name in mesh.axes())
        yield (
            f"{axes}: weights, gradients and optimizer of {share * mesh.shards / GIB:,.0f} GiB{over}, {share / GIB:.1f} on each"
        )
    if mesh.cp > 1:
        few = needs.tokens_per_step < needs.max_length * mesh.data_ranks * mesh.cp
        why = (
            f"a step of {needs.tokens_per_step:,} tokens has too few rows to give every device its own"
            if few
            else "whole rows would keep too much on one device"
        )
        yield f"cp {mesh.cp}: rows of {needs.max_length:,} tokens are cut in {mesh.cp}; {why}"
    if mesh.tp > 1:
        width = needs.hidden // mesh.tp
        few = needs.tokens_per_step < needs.max_length * mesh.data_ranks * mesh.cp * mesh.tp
        why = (
            f"nothing else fits, though {width:,} of the hidden size on each is narrow"
            if is_thin(needs, setup)
            else f"a step of {needs.tokens_per_step:,} tokens has too few rows to give every device its own, and {width:,} of "
            "the hidden size on each is wide enough"
            if few
            else f"nothing without it fits or is as fast, and {width:,} of the hidden size on each is wide enough"
        )
        yield f"tp {mesh.tp}: {why}"
    if mesh.ep > 1:
        yield f"ep {mesh.ep}: each device holds {needs.num_experts // mesh.ep} of {needs.num_experts} experts"
    rows = setup.micro_batch_tokens // needs.max_length
    said = "one row of max_length" if rows <= 1 else f"{rows} rows of max_length; larger products are faster"
    yield f"micro-batch {setup.micro_batch_tokens:,} tokens: {said}"
    lighter = LIGHTER[setup.checkpointing]
    if lighter is None:
        yield f"activation checkpointing none: all that blocks keep ({memory.saved / GIB:.1f} GiB) fits"
    else:
        without = memory_of(needs, replace(setup, checkpointing=lighter, offload=False), device).total
        cost = (
            f"one more forward pass, {needs.forward_share:z.0%} of the work"
            if setup.checkpointing == "full"
            else "cheap operations twice"
        )
        because = (
            f"with {lighter} it takes {without / GIB:,.1f} GiB"
            if without > room
            else f"with {lighter} only smaller micro-batches would fit"
        )
        yield f"activation checkpointing {setup.checkpointing}: {because}; costs {cost}"
    if setup.offload:
        without = memory_of(needs, replace(setup, offload=False), device).total
        yield f"offload: without it {without / GIB:,.1f} GiB; what blocks keep waits in host memory meanwhile"


def _why_fewer(needs: Needs, setup: Setup, device: Device, count: int) -> str:
    """The reason why some devices stay idle."""
    rows = -(-needs.tokens_per_step // needs.max_length)
    why = (
        "this model is so small that a device takes longer to start its operations than to compute them"
        if is_too_small(needs, setup, device)
        else f"a step has only {counted(rows, 'row')} of {needs.max_length:,} tokens"
    )
    return (
        f"{setup.mesh.processes} of {count} devices: {why}, so more devices would not make a step of "
        f"{needs.tokens_per_step:,} tokens a fifth faster; a larger tokens_per_step would use them"
    )

"""Estimates the speed of a training setup. Imports no torch.

A token takes the time of its matrix products, its attention and the bytes that layers between products read and write, at the
rates of the device (model_ops.machine.device_rates), times the factors below, which are assumed.
"""

from model_ops.machine import Device, rates_of
from model_ops.planning.memory_plan import Needs, Setup

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

"""Measures each step for metrics.jsonl: tokens, speed, MFU, waiting time, peak memory.

Tokens are those of all processes that hold different rows. MFU, model FLOPs utilisation, is needed operations
(model_ops.training.flops) over what the devices could do in that time, where their peak is known and products are bfloat16.
"""

import psutil
import torch
from torch import nn

from model_ops.machine import peak_bf16_flops
from model_ops.parallel import World
from model_ops.training.flops import matrix_work, needed_flops
from model_ops.training.step_batches import StepData


class StepMeter:
    """Measures the steps of one run. Create it after trained and frozen weights are chosen."""

    def __init__(self, model: nn.Module, world: World, precision: str, peak_flops: float | None = None):
        if peak_flops is None and world.device.type == "cuda" and precision == "bfloat16":
            peak_flops = peak_bf16_flops(torch.cuda.get_device_name(world.device))
        self._world = world
        self._peak_flops = peak_flops
        self._work = matrix_work(model) if peak_flops else None

    def numbers(self, data: StepData, seconds: float) -> dict[str, float]:
        """The numbers of a step that took `seconds`; equal in all processes, except for waiting time and memory."""
        flops = needed_flops(self._work, data.document_lengths, data.target_tokens, data.prefix_lengths) if self._work else 0.0
        held = torch.tensor([data.tokens, data.target_tokens, flops], dtype=torch.float64)
        if self._world.size > 1:
            held = self._world.total(held.to(self._world.device)).cpu()
        tokens, targets, flops = held.tolist()
        seconds = max(seconds, 1e-9)
        numbers = {"tokens": int(tokens), "target_tokens": int(targets), "tokens_per_second": round(tokens / seconds)}
        if self._work and self._peak_flops:
            numbers["mfu"] = round(flops / (seconds * self._world.size * self._peak_flops), 4)
        return {
            **numbers,
            "data_wait_share": round(min(1.0, data.waited_s / seconds), 4),
            "peak_memory_mb": round(peak_memory_mb(self._world.device)),
        }


def peak_memory_mb(device: torch.device) -> float:
    """Peak memory in MiB: of the accelerator if there is one, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):
        return memory.peak_wset / 2**20
    import resource
    import sys

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)

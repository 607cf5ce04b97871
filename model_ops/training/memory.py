"""Peak memory of a run."""

from __future__ import annotations

import psutil
import torch


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

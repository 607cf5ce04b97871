"""Detects CPUs that multiply bfloat16 slower than float32, because they emulate it or lack AMX.

    sentence = slow_bfloat16(settings.precision, device)        # None if bfloat16 is not slow

`precision: bfloat16` suits accelerators and CPUs with AMX; on other CPUs the same run in float32 may be faster. Weights and
optimizer are float32 in both cases; with float32, activations take more memory.
"""

from __future__ import annotations

import time

import torch

SIDE = 768
"""Rows and columns of the square matrices in the measurement: larger than small caches; 0.02 s on one slow core."""

WORTH_SAYING = 0.8
"""A warning is given below this speed of bfloat16 relative to float32; only about half of training time is products."""


def slow_bfloat16(precision: str, device: torch.device) -> str | None:
    """A sentence for the user if training in bfloat16 is slower than in float32 on this CPU; otherwise None."""
    if precision != "bfloat16" or device.type != "cpu":
        return None
    share = product_seconds(torch.float32) / product_seconds(torch.bfloat16)
    if share >= WORTH_SAYING:
        return None
    return f"this processor multiplies bfloat16 at {share:.1f} of float32's speed: precision: float32 would train faster"


def product_seconds(dtype: torch.dtype) -> float:
    """Seconds of the fastest of three products of two square matrices, after a warm-up."""
    matrix = torch.ones(SIDE, SIDE, dtype=dtype)
    found = []
    for _ in range(4):
        started_s = time.perf_counter()
        matrix @ matrix
        found.append(time.perf_counter() - started_s)
    return min(found[1:])

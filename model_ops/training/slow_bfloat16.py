"""Whether a processor multiplies bfloat16 slower than float32, as those do that only emulate it or lack tiles for it.

    sentence = slow_bfloat16(settings.precision, device)        # None where there is nothing to say

A recipe's `precision: bfloat16` is right for accelerators and for processors with AMX; on others the same run in float32 may
be faster. Weights and optimizer are float32 in both; what is kept for the backward pass takes more memory.
"""

from __future__ import annotations

import time

import torch

SIDE = 768
"""Of the square matrices that are multiplied: out of the small caches, and done in 0.02 s on one slow core."""

WORTH_SAYING = 0.8
"""From this rate of bfloat16 over float32's downwards a training feels it: only about half of its time is products."""


def slow_bfloat16(precision: str, device: torch.device) -> str | None:
    """What to tell whoever runs a training in bfloat16 here, if its products are slower than those in float32."""
    if precision != "bfloat16" or device.type != "cpu":
        return None
    share = product_seconds(torch.float32) / product_seconds(torch.bfloat16)
    if share >= WORTH_SAYING:
        return None
    return f"this processor multiplies bfloat16 at {share:.1f} of float32's speed: precision: float32 would train faster"


def product_seconds(dtype: torch.dtype) -> float:
    """The best of three products of two square matrices, after one that nobody measures."""
    matrix = torch.ones(SIDE, SIDE, dtype=dtype)
    found = []
    for _ in range(4):
        started_s = time.perf_counter()
        matrix @ matrix
        found.append(time.perf_counter() - started_s)
    return min(found[1:])

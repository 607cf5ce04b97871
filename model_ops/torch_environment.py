"""What torch and its libraries read from the environment, once, when they are loaded or first used.

    set_torch_environment()      # before torch is imported; what the user has set stays
"""

from __future__ import annotations

import os

SPINS = "10000"
"""How long an OpenMP thread spins before it sleeps. For ever, the default, is ruinous on a machine that does anything
else (two threads on one core spin against each other: 400 to 1,100 tokens/s where 6,700 are possible); not at all
leaves one of two cores idle (3,900 to 5,500 tokens/s). Measured on the demo's SFT step, 2 cores."""

KERNELS_KEPT = "64"
"""Compiled products that oneDNN, and torch's layer above it, keep on a CPU: one for every shape. Packed rows bring new
shapes at every step, and 1,024 of each, the default, are half a gigabyte: a 10M model's step grew by 10 MiB each time
(1,428 MiB after 20 steps, 1,185 with 64, no slower). One step's own shapes are fewer than 64."""


def set_torch_environment() -> None:
    """Sets what is not set yet."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    os.environ.setdefault("LRU_CACHE_CAPACITY", KERNELS_KEPT)
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS_KEPT)

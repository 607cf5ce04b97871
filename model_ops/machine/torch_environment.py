"""Sets environment variables of OpenMP, oneDNN, torch and cuBLAS for training.

set_torch_environment()      # call before torch is imported; the user's own values stay
"""

import os

SPINS = "10000"
"""Spins of an OpenMP thread before it sleeps. Measured on the demo's SFT step with 2 cores: 6,700 tokens/s; without a limit
(the default) 400 to 1,100 when other processes share the cores; without spinning 3,900 to 5,500."""

KERNELS_KEPT = "64"
"""Capacity of the kernel caches of oneDNN and torch on a CPU; they hold one kernel per shape. Packed rows bring new shapes at
every step, and the default of 1,024 takes half a gigabyte: memory of a 10M model was 1,428 MiB after 20 steps, and 1,185 MiB
with 64, at the same speed. One step has fewer than 64 shapes."""

CUBLAS_WORKSPACE = ":4096:8"
"""Workspace with which cuBLAS is deterministic (8 buffers of 4 MiB); cuBLAS reads it before a job's settings are known."""


ALLOCATORS = "expandable_segments:True,pinned_use_cuda_host_register:True,pinned_num_register_threads:8"
"""torch's CUDA allocators: segments of the device's memory grow, so that rows of new lengths leave no gaps; host memory for
checkpoints is mapped by eight threads, where one takes half a minute for half of a large machine's memory."""

CUDNN_LAST = "1"
"""torch prefers cuDNN's attention on Hopper. cuDNN builds a plan for each shape, in up to a second, and decoding and batches of
documents bring a new shape nearly every time."""


def set_torch_environment() -> None:
    """Sets every variable that is not set yet."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    os.environ.setdefault("LRU_CACHE_CAPACITY", KERNELS_KEPT)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", ALLOCATORS)
    os.environ.setdefault("TORCH_CUDNN_SDPA_DEPRIORITIZED", CUDNN_LAST)
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS_KEPT)

"""This process: variables to set before torch is imported, memory that goes back to the system, and an end that no thread of a
library can spoil."""

import atexit
import ctypes
import gc
import os
import sys
import threading
from contextlib import suppress
from typing import IO, AnyStr, NoReturn

KEPT_BLOCK_BYTES, KEPT_BYTES = 32 << 20, 512 << 20


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory during a job. Training frees and allocates the same blocks at every step, and mapping them
    again each time costs a tenth of the step."""
    mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
    mallopt = _of_the_c_library("mallopt")
    if mallopt is not None:
        mallopt(mmap_threshold, KEPT_BLOCK_BYTES)
        mallopt(trim_threshold, KEPT_BYTES)


def give_back_memory() -> None:
    """Returns freed memory to the system: between jobs, and before a run whose memory is measured. A CUDA device gets its
    cached memory back too, and its peak counts from now: a worker runs several stages."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    if "pyarrow" in sys.modules:  # its allocator keeps the memory of the datasets that were read
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    trim = _of_the_c_library("malloc_trim")
    if trim is not None:
        trim(0)


def free_device_memory(device) -> int:
    """Bytes that this process can still take of a CUDA device: free ones, and those that torch keeps of freed tensors."""
    cuda = sys.modules["torch"].cuda
    return cuda.mem_get_info(device)[0] + cuda.memory_reserved(device) - cuda.memory_allocated(device)


def _of_the_c_library(name: str):
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None


def pipe_of(stream: IO[AnyStr] | None) -> IO[AnyStr]:
    """A pipe of a process: its stdin, stdout or stderr. Raises ValueError if the process was started without it."""
    if stream is None:
        raise ValueError("the process was started without this pipe: start it with stdin=PIPE and stdout=PIPE")
    return stream


def end_process(code: int | str | None, waits: bool = True) -> NoReturn:
    """code: as for sys.exit. waits: for threads that are not daemons."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    if waits:
        threading._shutdown()  # type: ignore[attr-defined]  # private: what Python does itself before its exit functions
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed before Python began
        with suppress(OSError, ValueError):  # closed, or nobody reads
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


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

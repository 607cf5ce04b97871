"""Controls when freed memory returns to the system: glibc's malloc (no other C library), pyarrow's pool, torch's CUDA cache."""

import ctypes
import gc
import sys

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
    """Returns freed memory to the system: between jobs, and before a run whose memory is measured.

    A CUDA device gets its cached memory back too, and its peak counts from now: a worker runs several stages."""
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

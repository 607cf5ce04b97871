"""What the C library does with memory that is freed. On glibc; other C libraries are left as they are."""

from __future__ import annotations

import ctypes
import gc
import sys

KEPT_BLOCK_BYTES, KEPT_BYTES = 32 << 20, 512 << 20


def keep_freed_memory() -> None:
    """Tells glibc to keep freed memory within a job: training frees and takes the same blocks at every step, and mapping
    them anew each time costs a tenth of the step. Other C libraries are left as they are."""
    mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
    mallopt = _of_the_c_library("mallopt")
    if mallopt is not None:
        mallopt(mmap_threshold, KEPT_BLOCK_BYTES)
        mallopt(trim_threshold, KEPT_BYTES)


def give_back_memory() -> None:
    """What was freed goes back to the system: between jobs, and before a run whose memory is measured from here."""
    gc.collect()
    if "pyarrow" in sys.modules:  # its allocator keeps what a dataset was read into
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    trim = _of_the_c_library("malloc_trim")
    if trim is not None:
        trim(0)


def _of_the_c_library(name: str):
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None

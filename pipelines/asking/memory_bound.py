"""Limits this process's memory, including what no library counts.

    with at_most(gib=5): ...     # an allocation beyond fails, and with it the work instead of the machine

DuckDB counts its tables and sorts, but not a string of 3 GB that a function of the query makes. Linux only: elsewhere nothing
is bounded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(gib: float) -> Iterator[None]:
    """Lets the process take at most this much more memory than it uses now."""
    if sys.platform != "linux":
        yield
        return
    import resource

    import psutil

    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = psutil.Process().memory_info().data + round(gib * 2**30)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))

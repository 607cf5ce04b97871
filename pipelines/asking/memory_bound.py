"""Limits this process's memory, including what no library counts.

    with at_most(gib=5): ...     # an allocation beyond fails, and with it the work instead of the machine

DuckDB counts its tables and sorts, but not a string of 3 GB that a function of the query makes. Linux only: elsewhere nothing
is bounded. Several blocks may be open at once, in threads: each adds its room to the limit.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_OPEN: list[int] = []
"""Bytes of room of each open block."""
_BEFORE: list[int] = []
"""The process's limit before the first block was opened, and the memory that it used then."""


@contextmanager
def at_most(gib: float) -> Iterator[None]:
    """Lets the process take at most this much more memory than it uses now."""
    if sys.platform != "linux":
        yield
        return
    room = round(gib * 2**30)
    with _LOCK:
        _OPEN.append(room)
        _limit()
    try:
        yield
    finally:
        with _LOCK:
            _OPEN.remove(room)
            _limit()


def _limit() -> None:
    """Sets the limit that the open blocks need; without an open block, the earlier one."""
    import resource

    import psutil

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if not _BEFORE:
        _BEFORE.extend((soft, psutil.Process().memory_info().data))
    before, used = _BEFORE
    most = used + sum(_OPEN)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most if _OPEN else before, hard))
    if not _OPEN:
        _BEFORE.clear()

"""Kernel locks on open files and directories (flock), between processes of one machine.

    with locked(path): ...                  # waits for the lock; creates the file
    if try_lock(file, shared=True): ...     # does not wait
    lock(file)                              # waits

The kernel frees a lock when its file is closed or its process ends.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def lock(file: IO | int, shared: bool = False) -> None:
    """Waits for the lock. shared: others may share it; otherwise nobody else has it."""
    fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def try_lock(file: IO | int, shared: bool = False) -> bool:
    """Takes the lock if that needs no waiting. Returns whether it did. Raises OSError if the file system has no locks."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(file: IO | int) -> None:
    """Frees the lock of a file that stays open."""
    fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for the lock of a file, which is created if needed, and holds it."""
    with path.open("a") as file:
        lock(file)
        yield


def is_at(handle: int, path: Path, follow_symlinks: bool = True) -> bool:
    """Whether an open file or directory is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat(follow_symlinks=follow_symlinks))
    except FileNotFoundError:
        return False

"""Locks on directories: a process that works in a directory holds its lock, an flock on the directory itself, shared for work
in it, exclusive for its removal; the kernel frees it when the process ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model_ops.files import is_at, lock, try_lock

_HELD: dict[Path, int] = {}


class InUse(Exception):
    """Another process, or another part of this one, works in the directory."""


def hold(directory: Path) -> None:
    """Creates the directory if needed, and holds it. Waits for a removal that is under way, then creates the directory again.
    If the file system has no locks, the directory is created but not held."""
    directory = directory.absolute()
    if directory in _HELD:
        if is_at(_HELD[directory], directory, follow_symlinks=False):
            return
        os.close(_HELD.pop(directory))
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # removed between the two lines
        try:
            lock(handle, shared=True)
        except OSError:
            os.close(handle)
            return
        if is_at(handle, directory, follow_symlinks=False):
            _HELD[directory] = handle
            return
        os.close(handle)  # it was moved away while this process waited


def let_go(directory: Path) -> None:
    """Releases a lock of `hold`; does nothing if there is none."""
    handle = _HELD.pop(directory.absolute(), None)
    if handle is not None:
        os.close(handle)


@contextmanager
def holding(directory: Path) -> Iterator[None]:
    """Holds a directory until the block ends, or longer if this process held it before."""
    held_before = directory.absolute() in _HELD
    hold(directory)
    try:
        yield
    finally:
        if not held_before:
            let_go(directory)


@contextmanager
def taken(directory: Path) -> Iterator[None]:
    """Locks the directory exclusively. Raises InUse if it is held or cannot be locked, FileNotFoundError if it is gone,
    NotADirectoryError for anything else (a link to a directory too)."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            is_free = try_lock(handle)
        except OSError:
            is_free = False  # the file system has no locks
        if not is_free:
            raise InUse(f"{directory} is in use")
        if not is_at(handle, directory, follow_symlinks=False):
            raise FileNotFoundError(directory)
        yield
    finally:
        os.close(handle)

"""Locks on directories: who works in one holds it, and the kernel lets go of it when the process ends, however it ends.

    hold(directory)             # from now on, until let_go(directory) or the end of this process
    with taken(directory): ...  # alone; raises InUse where any process holds it

The lock is flock's on the directory itself: shared for those that work in it, exclusive for who removes it. No file is left
behind.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HELD: dict[Path, int] = {}


class InUse(Exception):
    """Another process, or another part of this one, works in the directory."""


def hold(directory: Path) -> None:
    """Makes the directory where it is not there, and holds it. Waits for a removal that is under way, and then makes it anew.

    Where the file system has no locks it is made and not held.
    """
    directory = directory.absolute()
    if directory in _HELD:
        if _is_it(_HELD[directory], directory):
            return
        os.close(_HELD.pop(directory))
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # removed between the two lines
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
        except OSError:
            os.close(handle)
            return
        if _is_it(handle, directory):
            _HELD[directory] = handle
            return
        os.close(handle)  # it was moved away while this waited


def let_go(directory: Path) -> None:
    """Ends what `hold` began; nothing where it was not held."""
    handle = _HELD.pop(directory.absolute(), None)
    if handle is not None:
        os.close(handle)


@contextmanager
def taken(directory: Path) -> Iterator[None]:
    """The directory for this caller alone. Raises InUse where it is held, or cannot be locked; FileNotFoundError where it is
    gone, NotADirectoryError where it is none (a link to a directory is none)."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InUse(f"{directory} is in use") from error
        if not _is_it(handle, directory):
            raise FileNotFoundError(directory)
        yield
    finally:
        os.close(handle)


def _is_it(handle: int, directory: Path) -> bool:
    """Whether an open directory is still the one at this path."""
    try:
        there = directory.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = os.fstat(handle)
    return (opened.st_dev, opened.st_ino) == (there.st_dev, there.st_ino)

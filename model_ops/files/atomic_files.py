"""Atomic writes and locks: a file appears under its name, or replaces the old one, only when it is complete.

    with replacement(path) as temporary: pq.write_table(rows, temporary)            # several processes may write `path`
    with renamed_when_complete(path) as temporary: save_file(tensors, temporary)    # one process at a time writes it

Temporary files have names with a leading dot, which manifests leave out."""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


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
def file_lock(path: Path) -> Iterator[None]:
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


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """A temporary file in the same folder that replaces `path` when the block ends, and is deleted if the block fails. Its name
    is unique, so several processes may write the same file. Its content is flushed to the disk first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        yield temporary
        os.fsync(handle)
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


@contextmanager
def renamed_when_complete(path: Path, flush: bool = False) -> Iterator[Path]:
    """The path of a temporary file that is renamed to `path` when the block ends, and deleted if the block fails. For large
    files that one process at a time writes: the temporary name is always the same, so a file that a killed process left is
    overwritten by the next one. flush: write the content to the disk before the file is renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.unfinished")
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        if flush:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Replaces `path` by a file that holds `text`."""
    with replacement(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Replaces `path` by `value` as indented JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

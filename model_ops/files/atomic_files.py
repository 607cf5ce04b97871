"""Atomic writes: a file appears under its name, or replaces the old one, only when it is complete.

    write_text(path, text)      write_json(path, value)
    with replaced(path) as temporary: pq.write_table(rows, temporary)               # several processes may write `path`
    with renamed_when_complete(path) as temporary: save_file(tensors, temporary)    # one process at a time writes it

Temporary files have names with a leading dot, which manifests leave out.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A temporary file in the same folder that replaces `path` when the block ends, and is deleted if the block fails.

    Its name is unique, so several processes may write the same file. Its content is flushed to the disk first.
    """
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
    """The path of a temporary file that is renamed to `path` when the block ends, and deleted if the block fails.

    For large files that one process at a time writes: the temporary name is always the same, so a file that a killed process
    left is overwritten by the next one. flush: write the content to the disk before the file is renamed.
    """
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
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Replaces `path` by `value` as indented JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

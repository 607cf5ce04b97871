"""Atomic writes: a file that others may be reading is replaced whole, by a temporary file that is renamed over it.

    write_text(path, text)      write_json(path, value)
    with replaced(path) as temporary: pq.write_table(rows, temporary)
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A temporary file in the same folder that takes the place of `path` when the block ends, and goes where it fails.

    What is written is flushed to the disk first. A reader sees the old file or the new one, never a part.
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


def write_text(path: Path, text: str) -> None:
    """Replaces `path` by a file that holds `text`."""
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Replaces `path` by `value` as indented JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

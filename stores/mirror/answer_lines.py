"""Joins two machines' files of paid answers (resources/teaching/kept_answers.py): a line for each answer, which only grow.

    base = join(path, base, others)
"""

from __future__ import annotations

import fcntl
from pathlib import Path

from model_ops.atomic_files import replaced


def join(path: Path, base: int, others: bytes) -> int:
    """Adds to the file the lines of `others` that it lacks. Returns the new base.

    base: the first bytes of the file that both machines had before. If lines of them are missing in `others`, an erasure has
    removed them, and they go here too. Otherwise lines are only appended, since processes may have the file open.
    """
    with path.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        content = file.read()
        theirs, known = others.splitlines(keepends=True), content[:base].splitlines(keepends=True)
        if not set(known) <= set(theirs):
            own = [line for line in content[base:].splitlines(keepends=True) if line not in set(theirs)]
            with replaced(path) as temporary:
                temporary.write_bytes(others + b"".join(own))
            return len(others)
        mine = set(content.splitlines(keepends=True))
        file.write(b"".join(line for line in theirs if line not in mine))
        return base

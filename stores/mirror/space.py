"""Keeps mirrors within their budget: MILLRACE_MIRROR_GIB, the most that one mirror may hold of what is in the bucket. Files
that were not needed for longest go first. A folder that a process holds stays, and so do every small file and every version
whose upload was stopped: the bucket may lose it.
"""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from stores.in_use import InUse, taken
from stores.lake_error import LakeError
from stores.mirror.known import MirrorIndex, Object

BUDGET = "MILLRACE_MIRROR_GIB"
GIB = 1 << 30
SMALL_BYTES = 256 << 10
"""Files up to this size are pulled at once and stay; larger ones are fetched when they are needed."""
KEEP_FREE = 64 << 20
"""Bytes of the disk that stay free."""


def make_room(root: Path, objects: Iterable[Object], known: MirrorIndex, needed: int, lake: str) -> None:
    """Drops fetched files until `needed` more bytes fit. objects: all that `known` has. Raises LakeError if they cannot fit."""
    every = {item.path: item for item in objects}
    there = [item for item in every.values() if item.is_here]
    room = _room(root, sum(item.size for item in there))
    for item in sorted(there, key=lambda each: each.used_at):
        if needed <= room:
            return
        unit = droppable(item.path)
        if (item.path.startswith("tables/") or f"{unit}/manifest.json" in every) and _drop(root, known, item):
            room += item.size
    if needed > room:
        raise LakeError(
            f"the mirror of {lake} has room for {max(room, 0) / GIB:.1f} GiB and the files that are needed take "
            f"{needed / GIB:.1f} GiB: give it a larger disk (MILLRACE_MIRRORS) or budget ({BUDGET})"
        )


def _room(root: Path, held: int) -> int:
    free = shutil.disk_usage(root).free - KEEP_FREE
    given = os.environ.get(BUDGET, "").strip()
    if not given:
        return free
    try:
        budget = float(given) * GIB
    except ValueError:
        budget = -1.0
    if not 0 < budget < float("inf"):
        raise LakeError(f"{BUDGET}={given}: give a number of GiB, such as 200")
    return min(free, int(budget) - held)


def droppable(name: str) -> str | None:
    """The folder, a table's or a version's, that a process holds while it needs a file; None for a file that is never
    dropped."""
    parts = PurePosixPath(name).parts
    depth = {"tables": 2, "datasets": 4, "models": 4, "releases": 3}.get(parts[0])
    return "/".join(parts[:depth]) if depth is not None and len(parts) > depth else None


def _drop(root: Path, known: MirrorIndex, item: Object) -> bool:
    """Drops one fetched file; False if it is a small one, was written here since, or is in use."""
    file, unit = root / item.path, droppable(item.path)
    if unit is None or item.bytes <= SMALL_BYTES or "/_delta_log/" in item.path or not item.is_unchanged(file):
        return False
    with suppress(OSError, InUse):
        with taken(root / unit):
            file.unlink()
            known.note(item.path, item.etag, item.bytes, None)
        return True
    return False

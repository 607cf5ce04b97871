"""Names of a lake's objects: which machines share, and which are part of an artefact's version."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from stores.in_use import InUse, taken
from stores.lake_error import LakeError
from stores.mirror.known import MirrorIndex, Object
from stores.s3 import ObjectEntry

HOME = ".mirror"
MANIFEST = "manifest.json"
MANIFEST_ALONE = "elsewhere.json"
"""Beside a manifest whose files another lake has (pipelines/rebuilding/)."""
ARTEFACTS = {"datasets": 4, "models": 4, "releases": 3}
"""Folders of artefacts, and the number of parts of a version's path."""
ANSWERS = "answers"
PUSHED = (*ARTEFACTS, "endpoints", ANSWERS, "counts", ".erasing")
"""Folders whose files are published with all others that a command wrote."""
SHARED = (*PUSHED, "deciding", "alerts", "reference_windows")
"""The last four: each file is published by whoever writes it, at once. Of claims, the bucket takes the first machine's."""
LOG = "_delta_log"


def is_shared(name: str) -> bool:
    parts = PurePosixPath(name).parts
    hidden = any(part.startswith(".") for part in parts[1:])
    return parts[0] in SHARED and len(parts) > 1 and not hidden and not name.endswith(".lock")


def is_table(name: str) -> bool:
    return name.startswith("tables/")


def is_answers(name: str) -> bool:
    return name.startswith(f"{ANSWERS}/")


def is_small(item: ObjectEntry) -> bool:
    """Whether an object is pulled at once. Larger ones are fetched when they are needed."""
    if is_table(item.key):
        return f"/{LOG}/" in item.key
    if is_answers(item.key):
        return False
    return item.bytes <= SMALL_BYTES or PurePosixPath(item.key).name == MANIFEST


def version_of(name: str) -> str | None:
    """The path of the artefact's version that a file is part of; None for other files, such as pointers."""
    parts = PurePosixPath(name).parts
    depth = ARTEFACTS.get(parts[0])
    return "/".join(parts[:depth]) if depth is not None and len(parts) > depth else None


def versions_of(names: Iterable[str]) -> set[str]:
    return {version for name in names if (version := version_of(name)) is not None}


def manifest_of(version: str) -> str:
    return f"{version}/{MANIFEST}"


def publish_order(path: Path) -> int:
    """What names other files is published after them."""
    return {MANIFEST: 1, "current.json": 2}.get(path.name, 0)


def files_in(directory: Path, pattern: str = "*") -> Iterator[Path]:
    """Files under a folder, without those whose name begins with a dot (unfinished writes) and folders that do."""
    for path in sorted(directory.rglob(pattern)) if directory.is_dir() else ():
        inside = path.relative_to(directory).parts
        if path.is_file() and not path.is_symlink() and not any(part.startswith(".") for part in inside):
            yield path


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
    """The folder, a table's or a version's, that holds a file in use; None for a file that is never dropped."""
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

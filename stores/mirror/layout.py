"""Names of a lake's objects: which machines share, and which are part of an artefact's version."""

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from stores.mirror.space import SMALL_BYTES
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

"""Whether the files of the base model's directory are still those that the base model was imported from.

    then, now = base_digests(lake, manifest, "/models/mine")        # (None, None) where it cannot change

The files are hashed only if one is newer than the import, and once: the answer is kept by their names, sizes and times.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from resources.artefacts.manifest import Manifest, describe_files, files_digest
from resources.artefacts.remembered import Remembered
from resources.lake import Lake

HASHED_BYTES = 4_000_000_000
"""Most bytes that are hashed within a tick of a sensor, which may take 60 s. Of larger models, new times count as new files."""


def stamp_of(directory: Path) -> str:
    """Names, sizes and times of a directory's files, hashed. "" for a directory that is away."""
    try:
        found = sorted((path.relative_to(directory).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
                       for path in directory.rglob("*") if path.is_file())
    except OSError:
        return ""
    return hashlib.sha256(repr(found).encode()).hexdigest() if found else ""


def base_digests(lake: Lake, manifest: Manifest | None, directory: str) -> tuple[str | None, str | None]:
    """Digest of the files that the base was imported from, and of those that are there now."""
    place = Path(directory)
    known = next((item.digest for item in manifest.inputs if item.kind == "external" and item.name == directory),
                 None) if manifest else None
    if known is None or manifest is None or not directory or not place.is_dir():
        return None, None
    stats = [path.stat() for path in place.rglob("*") if path.is_file()]
    if max((stat.st_mtime for stat in stats), default=0.0) <= manifest.created_at.timestamp():
        return known, known
    stamp = stamp_of(place)
    memory = Remembered(lake, f"base/{manifest.name.split('/')[0]}", made_by="base_revision 1")
    digest = memory.get(stamp)
    if digest is None:
        small = sum(stat.st_size for stat in stats) <= HASHED_BYTES
        digest = files_digest(describe_files(place)) if small else f"files:{stamp[:32]}"
        memory.keep({stamp: digest})
    return known, digest

"""Whether the directory of the base model has other files than those that were imported.

    then, now = base_digests(lake, manifest, "/models/mine")        # (None, None) where it cannot change

Files are hashed only if one is newer than the import, each once: its hash is kept by its name, size and time. A look hashes
for a limited time, so of a large model it says that nothing changed until later looks have hashed the rest.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from resources.digests import AnswerCache
from resources.lake import LakeLayout
from resources.manifests import File, Manifest, files_digest, files_under

HASHES_S = 15.0
"""Seconds after which a look begins no further file: a tick of a sensor may take 60 s."""
HASHED_BYTES = 20_000_000_000
"""Largest file that is hashed within a look. Of a larger one, a new time counts as a new file."""
MADE_BY = "base_revision 2"


def stamp_of(directory: Path) -> str:
    """Names, sizes and times of a directory's files, hashed. "" for a directory that is away."""
    try:
        files = sorted(
            (path.relative_to(directory).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
            for path in directory.rglob("*")
            if path.is_file()
        )
    except OSError:
        return ""
    return hashlib.sha256(repr(files).encode()).hexdigest() if files else ""


def hashed_so_far(lake: LakeLayout, workload: str) -> str:
    """Changes when a look has hashed further files."""
    return AnswerCache(lake, f"base/{workload}", MADE_BY).digest()


def base_digests(lake: LakeLayout, manifest: Manifest | None, directory: str) -> tuple[str | None, str | None]:
    """Digest of the files that the base was imported from, and of those that are there now, as far as that is known."""
    place = Path(directory)
    known = (
        next((item.digest for item in manifest.inputs if item.kind == "external" and item.name == directory), None)
        if manifest
        else None
    )
    if known is None or manifest is None or not directory or not place.is_dir():
        return None, None
    paths = files_under(place)
    if max((path.stat().st_mtime for path in paths), default=0.0) <= manifest.created_at.timestamp():
        return known, known
    memory = AnswerCache(lake, f"base/{manifest.name.split('/')[0]}", MADE_BY)
    until, files, hashes = time.monotonic() + HASHES_S, [], {}
    for path in paths:
        stat, relative = path.stat(), path.relative_to(place).as_posix()
        key = f"{relative}:{stat.st_size}:{stat.st_mtime_ns}"
        sha256 = memory.get(key)
        if sha256 is None and time.monotonic() < until:
            sha256 = _sha256(path, key, stat.st_size)
        if sha256 is not None:
            hashes[key] = sha256
            files.append(File(path=relative, bytes=stat.st_size, sha256=sha256))
    memory.keep(hashes)
    return known, files_digest(files) if len(files) == len(paths) else known


def _sha256(path: Path, key: str, size: int) -> str:
    if size > HASHED_BYTES:
        return hashlib.sha256(key.encode()).hexdigest()
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()

"""The files that a release consists of: its own, and those of the models that it serves: target and drafter, or an adapter's
base.

    files = release_files(lake, directory)             # {path in the lake: file}

Paths are those in the lake, so serving scripts work in a copy as they do in the lake, and a signature over the files says
which release of which workload it is. What an erasure may rewrite later is no part of it: pages that show rows, and the records
beside a manifest, signatures among them.
"""

from __future__ import annotations

import os
from pathlib import Path

from resources.artefacts.erased import BESIDE, PAGES
from resources.artefacts.manifest import SCRATCH
from resources.lake import Lake
from resources.releasing.release import ReleaseError, read_release


def release_files(lake: Lake, directory: Path) -> dict[str, Path]:
    """Every file of the release and of the models that it serves, by path in the lake. Raises ReleaseError for links and for
    parts that are gone."""
    parts = [lake.root / part.path for part in read_release(directory).served_parts]
    found = {}
    for place in (directory, *parts):
        if not place.is_dir():
            raise ReleaseError(f"release {directory.name} names {place.relative_to(lake.root)}, which is gone: restore it "
                               "from a copy")
        lake.mirror.fetch(place)
        found |= _files_of(lake.root, place)
    return found


def _files_of(root: Path, place: Path) -> dict[str, Path]:
    found = {}
    for folder, folders, names in os.walk(place):
        inside = Path(folder).relative_to(place)
        for name in [*folders, *names]:
            if (Path(folder) / name).is_symlink():
                raise ReleaseError(f"{(Path(folder) / name).relative_to(root)} is a link: a release has files only")
        folders[:] = sorted(name for name in folders if name != SCRATCH)
        for name in sorted(names):
            if name.startswith(".") or (inside == Path() and name in {*BESIDE, *PAGES}):
                continue
            path = Path(folder) / name
            found[path.relative_to(root).as_posix()] = path
    return found

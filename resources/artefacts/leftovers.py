"""Removes what stopped, killed and superseded runs left in a lake. Age counts from the newest file. A directory that a process
holds (stores/in_use.py) stays; links are never followed. Finished artefacts are never touched, nor is a version without
manifest.json that a pointer, a release, an endpoint or another manifest names: it was finished once."""

import json
import math
import os
import re
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from model_ops.jobs import counted, size
from resources.lake import LakeError, LakeLayout
from stores.in_use import InUse, taken

KEEP_DAYS = "MILLRACE_KEEP_UNFINISHED_DAYS"
DEFAULT_DAYS = 7.0
SHORTEST_S = 3_600.0
"""Temporary files have no lock, so they are removed after an hour at the earliest."""

_VERSION = re.compile(r"[0-9a-f]{12}")
_NAMED = re.compile(r"(?<![0-9a-zA-Z])[0-9a-f]{12}(?![0-9a-zA-Z])")
_NAMING = (
    "datasets/*/*/current.json", "models/*/*/current.json", "releases/*/current.json", "releases/*/*/release.json",
    "endpoints/*.json",
)  # fmt: skip
"""Files that name finished versions; read as text, so that damaged files still count."""
_MANIFESTS = ("datasets/*/*/*/manifest.json", "models/*/*/*/manifest.json", "releases/*/*/manifest.json")
_REMOVING = ".removing-"
_CUT_SHORT = re.compile(r"\.(?:catalog|signing)-[a-z0-9_]{8}|\..+\.(json|md|html|sh|yaml|csv)\.[a-z0-9_]{8}")
"""Names that tempfile gives: of a catalog's folder, of files being signed, of a file beside the one that it will replace."""


@dataclass(frozen=True)
class Leftover:
    """Something that was removed."""

    what: str
    name: str
    """Name of the asset."""
    version: str
    stopped: datetime
    bytes: int
    count: int = 1
    """Count of files or folders that are reported together."""

    def sentence(self) -> str:
        if self.what == "cut short":
            return f"removed {counted(self.count, 'temporary file')} of killed processes ({size(self.bytes)})"
        artefact = f"{self.name} {self.version}"
        return f"removed {self.what} {artefact} (stopped {self.stopped:%Y-%m-%d}, {size(self.bytes)})"


def keep_seconds() -> float | None:
    """Seconds that leftovers stay; None: for ever. Raises LakeError for an invalid MILLRACE_KEEP_UNFINISHED_DAYS."""
    given = os.environ.get(KEEP_DAYS, "").strip()
    if given.lower() == "forever":
        return None
    try:
        days = float(given or DEFAULT_DAYS)
    except ValueError:
        days = math.nan
    if not 0 <= days < math.inf:
        raise LakeError(f"{KEEP_DAYS}={given}: give a number of days, such as 7, or forever")
    return days * 86_400


def remove_leftovers(
    lake: LakeLayout, workload: str, keep_s: float | None, names: Collection[str] | None = None, shortest_s: float = SHORTEST_S
) -> list[Leftover]:
    """Removes leftovers that are older than `keep_s` seconds and not in use, and returns them. Of artefacts, only those of this
    workload, and only `names` if given. shortest_s: how long temporary files stay at least. What cannot be removed stays for
    the next time."""
    if keep_s is None:
        return []
    removed = []
    old = [leftover for leftover in _unfinished(lake, workload, names) if _is_old(leftover[0], keep_s)]
    named = named_versions(lake) if old else frozenset()
    for place, what, name in old:
        if place.name in named:
            continue
        leftover = _remove_unfinished(place, what, name, keep_s)
        removed += [leftover] if leftover else []
    cut_short = [_remove_cut_short(place, max(keep_s, shortest_s)) for place in _temporary(lake, workload)]
    there = [leftover for leftover in cut_short if leftover is not None]
    if there:
        removed.append(
            Leftover("cut short", "", "", max(item.stopped for item in there), sum(item.bytes for item in there), len(there))
        )
    return removed


def _unfinished(lake: LakeLayout, workload: str, names: Collection[str] | None) -> Iterator[tuple[Path, str, str]]:
    for kind in ("dataset", "model"):
        for home in _folders(lake.root, lake.artefacts(kind).name, workload):
            if names is None or home.name in names:
                yield from ((place, "unfinished", home.name) for place in _versions(home))
    if names is None or "release_candidate" in names:
        for place in _folders(lake.root, lake.artefacts("release").name, workload):
            if _VERSION.fullmatch(place.name):
                yield place, "unfinished", "release_candidate"


def named_versions(lake: LakeLayout) -> frozenset[str]:
    """Versions that pointers, releases, endpoints and the inputs of readable manifests name, of every workload."""
    versions: set[str] = set()
    for path in (path for pattern in _NAMING for path in lake.root.glob(pattern)):
        with suppress(OSError):
            versions.update(_NAMED.findall(path.read_text(errors="replace")))
    for path in (path for pattern in _MANIFESTS for path in lake.root.glob(pattern)):
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            versions.update(str(item["version"]) for item in json.loads(path.read_bytes())["inputs"] if item.get("version"))
    return frozenset(versions)


def _versions(home: Path) -> Iterator[Path]:
    return (place for place in _folders(home) if _VERSION.fullmatch(place.name))


def _folders(root: Path, *inside: str) -> list[Path]:
    """Folders in a folder of the lake, by name; none if any part of the path is a link or missing."""
    place = root
    for part in inside:
        place = place / part
        if place.is_symlink() or not place.is_dir():
            return []
    with suppress(OSError):
        return sorted(Path(entry.path) for entry in os.scandir(place) if entry.is_dir(follow_symlinks=False))
    return []


def _remove_unfinished(place: Path, what: str, name: str, keep_s: float) -> Leftover | None:
    if not _is_old(place, keep_s):
        return None
    aside = place.with_name(f"{_REMOVING}{place.name}")
    with suppress(OSError, InUse):
        with taken(place):
            # checked again under the lock, when no process can begin to work in it
            if not _is_old(place, keep_s):
                return None
            stopped, total = _newest(place), _bytes_in(place)
            place.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
        return Leftover(what, name, place.name, datetime.fromtimestamp(stopped, UTC), total)
    return None


def _is_old(place: Path, keep_s: float) -> bool:
    """Whether it is an unfinished directory in which nothing was written for `keep_s` seconds."""
    if place.is_symlink() or not place.is_dir() or os.path.lexists(place / "manifest.json"):
        return False
    return time.time() - _newest(place) >= keep_s


def _temporary(lake: LakeLayout, workload: str) -> Iterator[Path]:
    homes = [lake.root]
    for kind in ("datasets", "models", "releases"):
        for home in _folders(lake.root, kind, workload):
            homes += [home.parent, home, *_folders(home)]
    for name in ("endpoints", lake.dagster_home.name):
        homes += [home for home in _folders(lake.root) if home.name == name]
    homes += [*_folders(lake.root, "endpoints"), *_folders(lake.root, "endpoints", "log")]
    for home in dict.fromkeys(homes):
        with suppress(OSError):
            for entry in os.scandir(home):
                if not entry.is_symlink() and (_CUT_SHORT.fullmatch(entry.name) or _is_removing(entry.name)):
                    yield Path(entry.path)


def _is_removing(name: str) -> bool:
    return name.startswith(_REMOVING) and bool(_VERSION.fullmatch(name.removeprefix(_REMOVING)))


def _remove_cut_short(place: Path, keep_s: float) -> Leftover | None:
    with suppress(OSError):
        newest, total = _newest(place), _bytes_in(place)
        if time.time() - newest < (0 if _is_removing(place.name) else keep_s):
            return None
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()
        return Leftover("cut short", "", "", datetime.fromtimestamp(newest, UTC), total)
    return None


def _newest(place: Path) -> float:
    return max((_written(status) for status in _statuses(place)), default=time.time())


def _written(status: os.stat_result) -> float:
    """When a file was written or copied here. A restored copy keeps its old st_mtime; nothing sets st_ctime back."""
    return max(status.st_mtime, status.st_ctime)


def _bytes_in(place: Path) -> int:
    return sum(status.st_size for status in _statuses(place) if not stat.S_ISDIR(status.st_mode))


def _statuses(place: Path) -> Iterator[os.stat_result]:
    """The status of a path and of everything in it; links are not followed, and files that vanish meanwhile are skipped."""
    with suppress(OSError):
        yield place.lstat()
    if place.is_symlink():
        return
    for folder, folders, names in os.walk(place):
        for name in (*folders, *names):
            with suppress(OSError):
                yield (Path(folder) / name).lstat()

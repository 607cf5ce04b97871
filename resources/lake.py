"""The layout of a lake directory.

    <lake>/tables/<name>/                       Delta tables that grow
    <lake>/datasets/<workload>/<name>/<version>/    immutable Parquet + manifest.json
    <lake>/models/<workload>/<name>/<version>/      Hugging Face layout + manifest.json
    <lake>/releases/<workload>/<version>/       what an endpoint needs, by reference and digest
    <lake>/endpoints/<workload>.json            aliases: candidate, champion, previous
    <lake>/catalog.duckdb                       views over all of it
    <lake>/.dagster/                            Dagster's own history

`<lake>/lake.json` has the layout version; another version is refused before anything is written.
"""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass
from pathlib import Path

from model_ops.atomic_files import write_json

LAYOUT_VERSION = 2


class LakeError(Exception):
    """The lake cannot be used; the message says what to change."""


NO_PLACE = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP}
"""Error codes for paths where no folder can be created: in /proc, below a file or a device, with too long a name."""


@dataclass(frozen=True)
class Lake:
    """One lake. Only paths: opening one creates nothing but its root and `lake.json`."""

    root: Path

    @classmethod
    def open(cls, location: str | Path, create: bool = True) -> Lake:
        """The lake at a local directory.

        Raises LakeError if the path is not a directory, is on remote storage, does not exist (create=False), cannot be
        created, or has another layout version.
        """
        if "://" in str(location) and not str(location).startswith("file://"):
            raise LakeError(f"lake {location}: only a local directory can be a lake in this version; give a path")
        root = Path(str(location).removeprefix("file://")).expanduser().resolve()
        marker = root / "lake.json"
        try:
            _find_or_make(root, marker, create)
        except OSError as error:
            if error.errno not in NO_PLACE:
                raise
            reason = error.strerror
            raise LakeError(f"no lake can be made at {root} ({reason}): name a directory on a disk as --lake") from error
        try:
            version = json.loads(marker.read_text())["layout_version"]
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(f"{marker} is not readable as a lake's marker ({error}); restore it from a copy") from error
        if version != LAYOUT_VERSION:
            raise LakeError(
                f"lake {root} has layout version {version}, this millrace reads version {LAYOUT_VERSION}: "
                "use the millrace that wrote it, or a new --lake"
            )
        return cls(root)

    def table(self, name: str) -> Path:
        return self.root / "tables" / name

    def artefacts(self, kind: str) -> Path:
        """Root of all artefacts of a kind: dataset, model or release."""
        return self.root / {"dataset": "datasets", "model": "models", "release": "releases"}[kind]

    def endpoint(self, workload: str) -> Path:
        return self.root / "endpoints" / f"{workload}.json"

    @property
    def catalog(self) -> Path:
        return self.root / "catalog.duckdb"

    @property
    def dagster_home(self) -> Path:
        return self.root / ".dagster"


def _find_or_make(root: Path, marker: Path, create: bool) -> None:
    """Finds or creates a lake's marker. Raises LakeError where no lake may be made, OSError where none can."""
    if root.exists() and not root.is_dir():
        raise LakeError(f"lake {root} is a file; give a directory")
    if not marker.exists():
        if not create:
            raise LakeError(f"no lake at {root}: run a recipe with --lake {root} first, or name another --lake")
        others = [child.name for child in root.iterdir()] if root.exists() else []
        foreign = [name for name in others if name != ".dagster" and not name.startswith(f".{marker.name}")]
        if foreign and not marker.exists():  # it may exist by now: others create lakes too
            raise LakeError(f"{root} is not empty and is no lake (it has no lake.json); give an empty directory")
        write_json(marker, {"layout_version": LAYOUT_VERSION})

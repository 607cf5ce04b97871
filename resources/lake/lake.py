"""The layout of a lake, on a disk or in a bucket; docs/architecture.md lists its folders. `lake.json` has the layout version:
another one is refused before anything is written. For a lake in a bucket, `root` is this machine's mirror (stores/mirror/)."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from model_ops.files import write_json
from stores.lake_error import LakeError
from stores.mirror.location import connected, is_bucket, mirror_root, url_at
from stores.mirror.mirror import Mirror
from stores.mirror.no_mirror import NoMirror

LAYOUT_VERSION = 3
UNREADABLE = re.compile(r"[][*?|\\^]|%[0-9a-fA-F]{2}")
"""What no lake's path may have: delta-rs takes it for something else, or DuckDB for a pattern of names."""
NO_PLACE = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP}
"""Error codes for paths where no folder can be created: in /proc, below a file or a device, with too long a name."""


@dataclass(frozen=True)
class LakeLayout:
    """One lake. Only paths: opening one creates nothing but its root and `lake.json`."""

    root: Path
    mirror: Mirror | NoMirror = field(default_factory=NoMirror, compare=False, repr=False)

    @classmethod
    def open(cls, location: str | Path, create: bool = True) -> LakeLayout:
        """The lake at a local directory, in a bucket (s3://BUCKET/PREFIX), or in the bucket that a directory mirrors. Raises
        LakeError if the path is not a directory, has what UNREADABLE finds, is on other remote storage, does not exist
        (create=False), cannot be created, or has another layout version, and if the bucket cannot be used."""
        if "://" in str(location) and not str(location).startswith(("file://", "s3://")):
            raise LakeError(f"lake {location}: a lake is a local directory or s3://BUCKET/PREFIX")
        if is_bucket(location):
            root = mirror_root(str(location))
        else:
            root = Path(str(location).removeprefix("file://")).expanduser().resolve()
        if unreadable := UNREADABLE.search(str(root)):
            raise LakeError(f"lake {root}: tables cannot lie in a path that has {unreadable[0]}: name a directory without it")
        url = url_at(root)
        mirror = NoMirror() if url is None else connected(root, url, LAYOUT_VERSION, create)
        place = url or str(root)
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
            raise LakeError(
                f"{place}/lake.json is not readable as a lake's marker ({error}); restore it from a copy"
            ) from error
        if version != LAYOUT_VERSION:
            raise LakeError(
                f"lake {place} has layout version {version}, this millrace reads version {LAYOUT_VERSION}: "
                "use the millrace that wrote it, or a new --lake"
            )
        return cls(root, mirror)

    @property
    def place(self) -> str:
        return self.mirror.place if isinstance(self.mirror, Mirror) else str(self.root)

    @property
    def option(self) -> str:
        """The lake as an option of a command that is shown to a person."""
        return f"--lake {shlex.quote(self.place)}"

    @property
    def typed_option(self) -> str:
        """The same, as a person in the current folder would type it."""
        place = self.mirror.place if isinstance(self.mirror, Mirror) else os.path.relpath(self.root)
        return f"--lake {shlex.quote(place)}"

    @property
    def key_check(self) -> str | None:
        """Fingerprint of the key that ids of this lake are hashed with; None before the first."""
        return json.loads((self.root / "lake.json").read_text()).get("key_check")

    def keep_key_check(self, fingerprint: str) -> None:
        marker = self.root / "lake.json"
        write_json(marker, {**json.loads(marker.read_text()), "key_check": fingerprint})
        self.mirror.publish(marker)

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
            raise LakeError(
                f"no lake at {root}: run a recipe with --lake {shlex.quote(str(root))} first, or name another --lake"
            )
        others = [child.name for child in root.iterdir()] if root.exists() else []
        foreign = [name for name in others if name != ".dagster" and not name.startswith(f".{marker.name}")]
        if foreign and not marker.exists():  # it may exist by now: others create lakes too
            raise LakeError(f"{root} is not empty and is no lake (it has no lake.json); give an empty directory")
        write_json(marker, {"layout_version": LAYOUT_VERSION})

"""Erasures under way: one file each in <lake>/.erasing, from before the tombstone until everything is erased.

    write(lake, request)        # first of all
    unfinished(lake)            # what a killed erasure left, oldest first
    done(lake, request)

A file has keyed hashes and no ids, as tombstones do.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from model_ops.atomic_files import write_text
from resources.erasing.asked import Asked, Kind
from resources.lake import Lake, LakeError


class Request(BaseModel):
    """One erasure."""

    model_config = ConfigDict(extra="forbid")

    erasure: str
    kind: Kind
    hashes: list[str]
    key_check: str
    who: str
    reason: str = ""
    vacuum: bool = False
    """Also remove old files of the tables."""
    workload: str = ""
    sources: list[str] = Field(default_factory=list)
    digests: dict[str, str] = Field(default_factory=dict)
    """Digests of the workload's table slices before the erasure of sources, which artefacts keep as their inputs."""
    at: datetime = Field(default_factory=lambda: datetime.now(UTC))

    @property
    def asked(self) -> Asked:
        return Asked(self.kind, tuple(self.hashes), self.workload, tuple(self.sources))


def write(lake: Lake, request: Request) -> None:
    path = _path(lake, request)
    write_text(path, request.model_dump_json(indent=2) + "\n")
    lake.mirror.publish(path)


def done(lake: Lake, request: Request) -> None:
    path = _path(lake, request)
    lake.mirror.remove(path)
    path.unlink(missing_ok=True)


def unfinished(lake: Lake) -> list[Request]:
    """Erasures that were begun and have not ended. Raises LakeError for a file that cannot be read."""
    found = []
    for path in sorted((lake.root / ".erasing").glob("*.json")):
        try:
            found.append(Request.model_validate_json(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise LakeError(f"{path} records an erasure that was not finished, and cannot be read: delete it and run the same "
                            "millrace forget again") from error
    return sorted(found, key=lambda request: request.at)


def _path(lake: Lake, request: Request) -> Path:
    return lake.root / ".erasing" / f"{request.erasure}.json"

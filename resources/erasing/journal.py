"""Erasures under way: one file each in <lake>/.erasing, from before the tombstone until everything is erased.

A file has keyed hashes and no ids, as tombstones do."""

import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from model_ops.files import write_text
from resources.digests import key_check, keyed_hash, user_of
from resources.lake import PARTITIONS, SCHEMAS, LakeError, LakeLayout, Tables, attach_files, rows, workbench

Kind = Literal["user", "session", "interaction", "source"]
"""source: whole sources of a workload, of which only counts stay (`keep_counts_only`)."""

_HASH = re.compile(r"^[0-9a-f]{64}$")


class ForgetError(LakeError):
    """The request cannot be carried out; the message says why."""


@dataclass(frozen=True)
class ErasureTarget:
    kind: Kind
    hashes: tuple[str, ...]
    """Hashes of the ids that are meant, as tombstones have them."""
    workload: str = ""
    sources: tuple[str, ...] = ()
    """`workload`, `sources`: the target of kind `source`, which has no hashes."""


def ask_for(tables: Tables, kind: Kind, identifier: str) -> ErasureTarget:
    """The hashes of an id. A user may be given by id or by user_hash, an interaction also by the first 8 digits of its id or by
    the id of its request. Raises ForgetError for an empty id and for digits that several interactions begin with."""
    identifier = identifier.strip()
    if not identifier:
        raise ForgetError(f"--{kind} is empty: give the id of a {kind}")
    if kind == "user":  # a hash of the tables, or an id that looks like one
        return ErasureTarget(kind, (*_HASH.findall(identifier), keyed_hash(user_of(identifier))))
    if kind == "session":
        return ErasureTarget(kind, (keyed_hash(identifier),))
    with workbench() as connection:
        files = tables.files("interactions")
        attach_files(connection, "interactions", SCHEMAS["interactions"], files, PARTITIONS["interactions"])
        named = rows(connection, "erasing/interactions_named", identifier=identifier).to_pylist()
    exact = [row["interaction_id"] for row in named if row["exact"]]
    if not exact and len(named) > 1:
        raise ForgetError(
            f"{identifier} may be any of {len(named)} interactions ({named[0]['interaction_id'][:16]}, "
            f"{named[1]['interaction_id'][:16]}, ...): give more of the id"
        )
    return ErasureTarget(
        kind, tuple(keyed_hash(each) for each in exact or [row["interaction_id"] for row in named] or [identifier])
    )


class PendingErasure(BaseModel):
    """One erasure."""

    model_config = ConfigDict(extra="forbid")

    erasure: str = Field(default_factory=lambda: f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}")
    kind: Kind
    hashes: list[str]
    key_check: str = Field(default_factory=key_check)
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
    def asked(self) -> ErasureTarget:
        return ErasureTarget(self.kind, tuple(self.hashes), self.workload, tuple(self.sources))


def write(lake: LakeLayout, request: PendingErasure) -> None:
    path = _path(lake, request)
    write_text(path, request.model_dump_json(indent=2) + "\n")
    lake.mirror.publish(path)


def done(lake: LakeLayout, request: PendingErasure) -> None:
    path = _path(lake, request)
    lake.mirror.remove(path)
    path.unlink(missing_ok=True)


def unfinished(lake: LakeLayout) -> list[PendingErasure]:
    """Erasures that were begun and have not ended. Raises LakeError for a file that cannot be read."""
    requests = []
    for path in sorted((lake.root / ".erasing").glob("*.json")):
        try:
            requests.append(PendingErasure.model_validate_json(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise LakeError(
                f"{path} records an erasure that was not finished, and cannot be read: delete it and run the same "
                "millrace forget again"
            ) from error
    return sorted(requests, key=lambda request: request.at)


def _path(lake: LakeLayout, request: PendingErasure) -> Path:
    return lake.root / ".erasing" / f"{request.erasure}.json"

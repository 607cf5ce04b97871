"""What `millrace forget` is asked to erase: a user, a session or an interaction, as keyed hashes.

    asked = ask_for(tables, "user", "ann@example.org")
    asked.hashes                 # what tombstones have; the id itself is written nowhere
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from resources.lake import LakeError
from resources.reading.user_hash import keyed_hash
from resources.sql_files import attach_files, rows, workbench
from resources.tables import PARTITIONS, SCHEMAS, Tables

Kind = Literal["user", "session", "interaction", "source"]
"""source: whole sources of a workload, of which only counts stay (counts_only.py)."""

_HASH = re.compile(r"[0-9a-f]{64}")


class ForgetError(LakeError):
    """The request cannot be carried out; the message says why."""


@dataclass(frozen=True)
class Asked:
    kind: Kind
    hashes: tuple[str, ...]
    """Hashes of the ids that are meant, as tombstones have them."""
    workload: str = ""
    sources: tuple[str, ...] = ()
    """`workload`, `sources`: the target of kind `source`, which has no hashes."""


def ask_for(tables: Tables, kind: Kind, identifier: str) -> Asked:
    """The hashes of an id. A user may be given by id or by user_hash, an interaction also by the first 8 digits of its id or by
    the id of its request. Raises ForgetError for an empty id and for digits that several interactions begin with."""
    identifier = identifier.strip()
    if not identifier:
        raise ForgetError(f"--{kind} is empty: give the id of a {kind}")
    if kind == "user" and _HASH.fullmatch(identifier):
        return Asked(kind, (identifier, keyed_hash(identifier)))  # a hash of the tables, or an id that looks like one
    if kind != "interaction":
        return Asked(kind, (keyed_hash(identifier),))
    with workbench() as connection:
        files = tables.files("interactions")
        attach_files(connection, "interactions", SCHEMAS["interactions"], files, PARTITIONS["interactions"])
        found = rows(connection, "erasing/interactions_named", identifier=identifier).to_pylist()
    exact = [row["interaction_id"] for row in found if row["exact"]]
    if not exact and len(found) > 1:
        raise ForgetError(f"{identifier} may be any of {len(found)} interactions ({found[0]['interaction_id'][:16]}, "
                          f"{found[1]['interaction_id'][:16]}, ...): give more of the id")
    return Asked(kind, tuple(keyed_hash(each) for each in exact or [row["interaction_id"] for row in found] or [identifier]))

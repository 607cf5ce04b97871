"""Tombstones: the table `erasures`, which keeps erased records from coming back when their sources are read again.

    hash_erased(connection, tables, workloads)     # the table erased_hashes, for anti-joins; False if there are none
    add_tombstones(tables, hashes)                 # of ids by which feedback may name what was erased

A tombstone has no id, only sha256(MILLRACE_USER_HASH_KEY, unit separator, id), as `user_hash` has. kind: user, session,
interaction, or about (any id that feedback may name: of a request, a trace, a session). With another key
no tombstone would match, and erased rows would come back unnoticed: hash_erased refuses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import duckdb
import pyarrow as pa

from resources.digests import USER_HASH_KEY, key_check
from resources.lake import PARTITIONS, SCHEMAS, LakeError, Tables, attach_files, run, workbench

EVERYWHERE = "*"
"""The workload of tombstones that count in every workload."""


def refuse_other_key(connection: duckdb.DuckDBPyConnection, tables: Tables) -> None:
    """Raises LakeError if the attached tombstones were made with another key than this process has."""
    if run(connection, "reading/erasures/tombstones_of_other_key", key_check=key_check()).fetchall()[0][0]:
        raise LakeError(
            f"rows of {tables.lake.place} were erased with another {USER_HASH_KEY} than is set now, so the erased "
            "records would be read again: set the key that the lake was made with"
        )


def refuse_other_key_of(tables: Tables) -> None:
    """Raises LakeError if any tombstone of the lake was made with another key than this process has."""
    with workbench() as connection:
        attach_files(connection, "erasures", SCHEMAS["erasures"], tables.files("erasures"), PARTITIONS["erasures"])
        refuse_other_key(connection, tables)


def hash_erased(connection: duckdb.DuckDBPyConnection, tables: Tables, workloads: Collection[str]) -> bool:
    """Makes the table erased_hashes (workload, kind, sha256); returns whether it has any row. Raises LakeError."""
    refuse_other_key(connection, tables)
    run(connection, "reading/erasures/erased_hashes", workloads=sorted(workloads))
    return bool(run(connection, "reading/erasures/count_erased_hashes").fetchall()[0][0])


def add_tombstones(tables: Tables, hashes: Sequence[str]) -> None:
    """Writes tombstones of ids that only erased records have, so that feedback about them is dropped when it arrives later."""
    if hashes:
        now = datetime.now(UTC)
        tables.append(
            "erasures",
            pa.Table.from_pylist(
                [
                    {
                        "workload": EVERYWHERE,
                        "kind": "about",
                        "sha256": sha256,
                        "ts": now,
                        "key_check": key_check(),
                        "reason": "an id of an erased record",
                        "who": "ingest",
                    }
                    for sha256 in hashes
                ],
                schema=SCHEMAS["erasures"],
            ),
        )

"""Tombstones: the table `erasures`, which keeps erased records from coming back when their sources are read again.

    decide(stage, tables, workloads)                  # inside an ingest: what is kept of the staged rows
    bury_ids(stage, tables)                           # ids of what was erased, by which feedback may name it later
    hash_erased(connection, tables, workloads)        # the table erased_hashes, for anti-joins; False if there are none

A tombstone has no id, only sha256(MILLRACE_USER_HASH_KEY, unit separator, id), as `user_hash` has. kind: user, session,
interaction, or about (any id that feedback may name: of a request, a trace, a session). With another key
no tombstone would match, and erased rows would come back unnoticed: hash_erased refuses.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import duckdb
import pyarrow as pa

from resources.lake import LakeError
from resources.reading.commit import EVERYWHERE
from resources.reading.staging import Staging
from resources.reading.user_hash import USER_HASH_KEY, hash_key, key_check
from resources.sql_files import attach_files, rows, run, workbench
from resources.tables import PARTITIONS, SCHEMAS, Tables


def refuse_other_key(connection: duckdb.DuckDBPyConnection, tables: Tables) -> None:
    """Raises LakeError if the attached tombstones were made with another key than this process has."""
    if run(connection, "reading/erasures/tombstones_of_other_key", key_check=key_check()).fetchall()[0][0]:
        raise LakeError(f"rows of {tables.lake.place} were erased with another {USER_HASH_KEY} than is set now, so the erased "
                        "records would be read again: set the key that the lake was made with")


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


def decide(stage: Staging, tables: Tables, workloads: Collection[str]) -> None:
    """Decides on the staged rows: which copy of an id stays, and what was erased. Erased feedback and the text of erased
    quarantined records are left out too. Raises LakeError for tombstones of another key."""
    connection, key = stage.connection, hash_key()
    some = hash_erased(connection, tables, workloads)
    run(connection, "reading/commit/row_decisions", user_hash_key=key)
    run(connection, "reading/erasures/newly_erased_ids", user_hash_key=key)
    run(connection, "reading/erasures/erased_feedback", user_hash_key=key)
    if some:
        run(connection, "reading/erasures/quarantine_without_erased", user_hash_key=key, workload=stage.workload)


def bury_ids(stage: Staging, tables: Tables) -> None:
    """Writes tombstones of ids that only erased records of the batch have, so that feedback about them is dropped when it
    arrives later. Call it before the batch is committed: after a kill the objects are read again."""
    found = rows(stage.connection, "reading/erasures/new_tombstones")["sha256"].to_pylist()
    if found:
        now = datetime.now(UTC)
        tables.append("erasures", pa.Table.from_pylist([
            {"workload": EVERYWHERE, "kind": "about", "sha256": sha256, "ts": now, "key_check": key_check(),
             "reason": "an id of an erased record", "who": "ingest"} for sha256 in found], schema=SCHEMAS["erasures"]))

"""Decides what becomes of a staged batch's rows, and commits them. Partitions that only gain rows are appended to; those that
lose rows are rewritten. Decisions are committed first, the ledger last: after a crash between two commits, affected objects are
unread in the ledger, or named by a committed decision, and are read again."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import duckdb
import pyarrow as pa

from resources.digests import USER_HASH_KEY, hash_key, key_check
from resources.lake import PARTITIONS, SCHEMAS, LakeError, Tables, attach_files, rows, run, slice_files, stream
from resources.reading.batches import StagedBatch
from resources.sources import LedgerEntry

EVERYWHERE = "*"
"""The workload of tombstones that count in every workload."""
_WITH_HASHES = ("interactions", "feedback", "retired", "erasures")


def refuse_other_key(tables: Tables) -> None:
    """Raises LakeError if ids of the lake were hashed with another key than this process has, or with none."""
    place, there = tables.lake.place, tables.lake.key_check
    if there in (None, key_check()) or not any(map(tables.files, _WITH_HASHES)):
        return
    if there == key_check(""):
        raise LakeError(
            f"user ids of {place} were hashed without a key, and {USER_HASH_KEY} is set now: unset it, or run the recipe "
            "into a new lake, which reads the sources again with the key"
        )
    state = f"another {USER_HASH_KEY} than is set now" if hash_key() else f"a key, and {USER_HASH_KEY} is not set now"
    raise LakeError(
        f"user ids of {place} were hashed with {state}: set the key that the lake was made with; where it is lost, run the "
        "recipe into a new lake"
    )


def keep_key(tables: Tables) -> None:
    """Notes the key of this process as the lake's. Raises LakeError if the lake has hashes of another one."""
    tables.lake.mirror.pull_file(tables.lake.root / "lake.json")
    refuse_other_key(tables)
    if tables.lake.key_check != key_check():
        tables.lake.keep_key_check(key_check())


def hash_erased(connection: duckdb.DuckDBPyConnection, tables: Tables, workloads: Collection[str]) -> bool:
    """Makes the table erased_hashes (workload, kind, sha256); returns whether it has any row. Raises LakeError."""
    refuse_other_key(tables)
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


ORDER = ("decisions", "quarantine", "feedback", "interactions")


def attach(connection: duckdb.DuckDBPyConnection, tables: Tables, name: str, workloads: Collection[str]) -> None:
    files = [file for each in sorted(workloads) for file in slice_files(tables, name, each)]
    attach_files(connection, name, SCHEMAS[name], files, PARTITIONS[name])


def find_earlier_rows(
    tables: Tables, connection: duckdb.DuckDBPyConnection, entries: Sequence[LedgerEntry], workloads: Collection[str]
) -> None:
    """Finds which of the objects have rows already: of another content, or of a run that was killed."""
    _attach_tables(tables, connection, workloads)
    connection.register("waiting", pa.table({"uri": pa.array([entry.uri for entry in entries], pa.string())}))
    run(connection, "reading/commit/read_before")


def decide(tables: Tables, batch: StagedBatch, workloads: Collection[str]) -> None:
    """Decides what becomes of the batch's rows: which copy of an id stays, and what was erased; erased feedback and the text of
    erased quarantined records are left out too. Makes the rows that `commit` writes. workloads: all that have rows of the
    batch's objects. Raises LakeError for tombstones of another key."""
    connection, key = batch.connection, hash_key()
    _attach_tables(tables, connection, workloads)
    for query in ("reread", "loose_ids", "tell_feedback_apart", "tell_apart", "known_ids", "emptied_before"):
        run(connection, f"reading/commit/{query}")
    any_erased = hash_erased(connection, tables, workloads)
    run(connection, "reading/commit/row_decisions", user_hash_key=key)
    run(connection, "reading/erasures/newly_erased_ids", user_hash_key=key)
    run(connection, "reading/erasures/erased_feedback", user_hash_key=key)
    if any_erased:
        run(connection, "reading/erasures/quarantine_without_erased", user_hash_key=key, workload=batch.workload)
    run(connection, "reading/commit/new_quarantine", workload=batch.workload)
    for view in ("new_decisions", "new_feedback", "new_interactions"):
        run(connection, f"reading/commit/{view}")


def commit(tables: Tables, batch: StagedBatch) -> None:
    """Writes the batch's rows, and removes those that they replace; tombstones first, so that a kill loses none."""
    add_tombstones(tables, rows(batch.connection, "reading/erasures/new_tombstones")["sha256"].to_pylist())
    for table in ORDER:
        run(batch.connection, f"reading/commit/{table}_rewritten")
        tables.append(table, stream(batch.connection, f"reading/commit/{table}_added"))
        for values in batch.connection.table("rewritten").fetchall():
            partition = dict(zip(PARTITIONS[table], values, strict=True))
            tables.replace(table, stream(batch.connection, f"reading/commit/{table}_partition", **partition), **partition)


def _attach_tables(tables: Tables, connection: duckdb.DuckDBPyConnection, workloads: Collection[str]) -> None:
    """Makes these workloads' rows readable in the batch's DuckDB, and tombstones that count in every workload."""
    for name in ORDER:
        attach(connection, tables, name, workloads)
    attach(connection, tables, "erasures", {*workloads, EVERYWHERE})

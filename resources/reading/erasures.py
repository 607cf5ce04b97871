"""Tombstones: the table `erasures`, which keeps erased records from coming back when their sources are read again. A tombstone
has no id, only sha256(MILLRACE_USER_HASH_KEY, unit separator, id), as `user_hash` has. With another key no tombstone and no
user_hash would match, so lake.json has the key's fingerprint from the first ingest on, and whoever hashes ids refuses another.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import duckdb
import pyarrow as pa

from resources.digests import USER_HASH_KEY, hash_key, key_check
from resources.lake import SCHEMAS, LakeError, Tables, run

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

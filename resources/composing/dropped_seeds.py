"""Drops seeds that were erased from the lake, as `millrace forget` drops logs, and seeds that contain evaluation items. A seed
is erased if its record names the user, the session or the request, if it was made from an erased interaction, or if it repeats
an exchange of one: a user's message and its answer. Contaminated seeds are listed in contaminated_seeds.parquet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from resources.curating import MACROS, Decontamination, find_items, read_eval_items
from resources.digests import hash_key, keyed_hash
from resources.lake import PARTITIONS, SCHEMAS, Tables, attach_files, attach_parquet, rows, run, stream, workbench, write_rows
from resources.reading import hash_erased


@dataclass(frozen=True)
class SeedTombstones:
    """Tombstones that count in a workload, as (kind, hash)."""

    hashes: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, tables: Tables, workload: str) -> SeedTombstones:
        """The tombstones of a lake. Raises LakeError for tombstones of another key."""
        with workbench() as connection:
            _attach(connection, tables, workload)
            tombstones = rows(connection, "composing/seeds/tombstones").to_pylist()
        return cls(frozenset((row["kind"], row["sha256"]) for row in tombstones))

    @property
    def digest(self) -> str:
        """sha256 over the tombstones; "" if there is none."""
        text = "".join(f"{kind} {sha256}\n" for kind, sha256 in sorted(self.hashes))
        return hashlib.sha256(text.encode()).hexdigest() if text else ""

    def names(self, session_id: str | None, user_hash: str | None, ids: Iterable[str | None]) -> bool:
        """Whether a record names an erased user or session, or one of its ids is that of an erased request or interaction."""
        if not self.hashes:
            return False
        if user_hash is not None and ("user", user_hash) in self.hashes:
            return True
        if session_id is not None and ("session", keyed_hash(session_id)) in self.hashes:
            return True
        keyed = [keyed_hash(each) for each in ids if each is not None]
        return any((kind, each) in self.hashes for each in keyed for kind in ("interaction", "about"))


def drop_erased_seeds(seeds: Path, tables: Tables, workload: str) -> dict[str, int]:
    """Drops seeds that repeat an erased exchange; returns their number by source. `seeds`: the directory that import_seeds
    filled."""
    with workbench() as connection:
        if not _attach(connection, tables, workload):
            return {}
        attach_parquet(connection, "seeds", seeds / "seeds.parquet")
        for macro in (*MACROS, "composing/seeds/exchanges_of"):
            run(connection, macro)
        run(connection, "composing/seeds/erased", user_hash_key=hash_key())
        counts = dict(run(connection, "composing/seeds/erased_by_source").fetchall())
        if counts:
            left = rows(connection, "composing/seeds/not_erased")
            write_rows(left.to_reader(), seeds / "seeds.parquet", pq.read_schema(seeds / "seeds.parquet"))
    return counts


def _attach(connection, tables: Tables, workload: str) -> bool:
    """Makes erased_hashes; returns whether it has any row."""
    attach_files(connection, "erasures", SCHEMAS["erasures"], tables.files("erasures"), PARTITIONS["erasures"])
    return hash_erased(connection, tables, [workload])


def drop_contaminated_seeds(seeds: Path, eval_items: Path, settings: Decontamination) -> dict[str, int]:
    """Drops the seeds and returns their number by source. `seeds`: the directory that import_seeds filled."""
    items = read_eval_items(eval_items)
    if not settings.enabled or not len(items):
        return {}
    with workbench() as connection:
        attach_parquet(connection, "seeds", seeds / "seeds.parquet")
        connection.register("eval_items", items)
        for macro in MACROS:
            run(connection, macro)
        run(connection, "composing/seeds/searched_rows")
        find_items(connection, settings)
        counts = dict(run(connection, "composing/seeds/contaminated_by_source").fetchall())
        write_rows(stream(connection, "composing/seeds/contaminated"), seeds / "contaminated_seeds.parquet")
        if counts:
            left = rows(connection, "composing/seeds/kept")
            write_rows(left.to_reader(), seeds / "seeds.parquet", pq.read_schema(seeds / "seeds.parquet"))
    return counts

"""Selects the rows of the tables that an erasure takes, and removes them.

For a user these are also rows without a user in sessions without other users; for a session or an interaction also later turns
that repeat its text. Seeds are found by the exchanges that they repeat, everything else by ids in the tables `interactions` and
`retired`, which lose their rows last, so an erasure that was killed selects the same rows again."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from resources.curating import MACROS
from resources.digests import hash_key, user_of
from resources.erasing.journal import ErasureTarget
from resources.lake import PARTITIONS, SCHEMAS, Tables, attach_files, rows, run, sql_text, stream, workbench

_BY_INTERACTIONS = ("feedback", "judgements", "contamination", "cleaned_interactions", "decisions", "quarantine", "retired")
ERASED_FROM = (*_BY_INTERACTIONS, "interactions")
"""In the order in which they lose rows: the others are found by `interactions`, and decisions are added for its rows."""

DAYS_TOGETHER = 8
"""Days that are rewritten in one commit."""

_ASKED = pa.schema([("kind", pa.string()), ("sha256", pa.string())])
_SOURCES = pa.schema([("workload", pa.string()), ("source", pa.string())])
_WITH_KEY = ("feedback", "quarantine")


@dataclass(frozen=True)
class SourceObject:
    """A source object with erased records: how many, and their first lines."""

    uri: str
    records: int
    lines: list[int] = field(default_factory=list)


class Selection:
    """The rows of one erasure, in a DuckDB of its own."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, tables: Tables, of_sources: bool = False):
        self.connection, self.tables, self.of_sources = connection, tables, of_sources
        self._changes: dict[str, dict[tuple[str, Any], int]] = {}

    @cached_property
    def workloads(self) -> dict[str, int]:
        """Selected interactions by workload."""
        return {row["workload"]: row["selected"] for row in rows(self.connection, "erasing/workloads").to_pylist()}

    @property
    def interactions(self) -> int:
        return sum(self.workloads.values())

    @cached_property
    def ids(self) -> frozenset[str]:
        """Ids of the erased interactions."""
        return self._ids_in("selected")

    @cached_property
    def derived_ids(self) -> frozenset[str]:
        """These and ids of interactions whose cleaned rows begin with turns of an erased one."""
        return self._ids_in("derived")

    @cached_property
    def sessions(self) -> frozenset[str]:
        """Ids of sessions that hold no other row."""
        return frozenset(self._named("session"))

    @cached_property
    def seed_ids(self) -> frozenset[str]:
        """Ids of seeds in finished datasets that repeat an exchange of a selected interaction; none where a source is erased,
        since seeds have sources of their own."""
        if self.of_sources:
            return frozenset()
        files = [
            str(path)
            for path in sorted(self.tables.lake.root.glob("datasets/*/*/*/*.parquet"))
            if {"row_id", "messages", "text"} <= set(pq.read_schema(path).names)
        ]
        if not files:
            return frozenset()
        seeds = rows(self.connection, "erasing/seeds_repeating", files=files, user_hash_key=hash_key())
        return frozenset(seeds["row_id"].to_pylist())

    @cached_property
    def other_ids(self) -> frozenset[str]:
        """Ids of requests and traces that only erased interactions have."""
        return frozenset(self._named("about"))

    @cached_property
    def places(self) -> list[SourceObject]:
        for table in ("feedback", "quarantine"):  # their lines are among the places
            self.changes(table)
        places = rows(self.connection, "erasing/places").to_pylist()
        return [SourceObject(row["source_uri"], row["records"], row["lines"]) for row in places]

    @cached_property
    def shared(self) -> tuple[int, int]:
        """Sessions that other users take part in, and the rows of these users in them."""
        counts = rows(self.connection, "erasing/shared_sessions").to_pylist()[0]
        return counts["sessions"], counts["rows_of_others"]

    @property
    def further_tombstones(self) -> pa.Table:
        """Rows (kind, sha256) beside the asked ones."""
        return self.connection.table("further_tombstones").to_arrow_table()

    def ids_to_retire(self) -> pa.RecordBatchReader:
        """Rows for the table `retired`: the ids of the selected interactions, without anything of their content."""
        return stream(self.connection, "erasing/retention/retired_source")

    def texts(self) -> Iterator[str]:
        """What the erased interactions say, as JSON."""
        for batch in self.connection.sql(sql_text("erasing/their_texts")).to_arrow_reader(10_000):
            yield from (text for text in batch["text"].to_pylist() if text)

    @cached_property
    def has_retired(self) -> bool:
        """Whether retention removed rows of some of the selected interactions."""
        return bool(self.changes("retired"))

    def other_texts(self) -> list[str]:
        """What some other interactions say."""
        return rows(self.connection, "erasing/other_texts")["text"].drop_null().to_pylist()

    def shapes(self, in_files: pa.Table) -> list[str]:
        """Names of prompt shapes that only erased rows have. in_files: those of datasets, rows (prompt_shape, is_erased)."""
        self.connection.register("in_files", in_files)
        return rows(self.connection, "erasing/erased_shapes")["shape"].to_pylist()

    def changes(self, table: str) -> dict[tuple[str, Any], int]:
        """Numbers of rows of a table that are erased or emptied, by workload and partition."""
        if table not in self._changes:  # the selection reads the files that were there when it began
            run(self.connection, f"erasing/marked/{table}", **({"user_hash_key": hash_key()} if table in _WITH_KEY else {}))
            affected = self.connection.execute(_about(table, "affected")).fetchall()
            self._changes[table] = {(workload, part): changed for workload, part, changed in affected}
        return self._changes[table]

    def remaining(self, table: str, workload: str, parts: list[Any]) -> pa.RecordBatchReader:
        """The rows of some partitions after the erasure. Call `changes` of the table first."""
        left = self.connection.sql(_about(table, "remaining"), params={"workload": workload, "parts": parts})
        return left.to_arrow_reader(10_000)

    def _ids_in(self, table: str) -> frozenset[str]:
        return frozenset(self.connection.table(table).to_arrow_table()["interaction_id"].to_pylist())

    def _named(self, kind: str) -> list[str]:
        erased_ids = self.connection.table("erased_ids").to_arrow_table().to_pylist()
        return [row["id"] for row in erased_ids if row["kind"] == kind]


@contextmanager
def select_rows(tables: Tables, asked: ErasureTarget) -> Iterator[Selection]:
    """Selects the rows of an erasure."""
    key = {"user_hash_key": hash_key()}
    with workbench() as connection:
        for name in (*ERASED_FROM, "objects", "erasures"):
            attach_files(connection, name, SCHEMAS[name], tables.files(name), PARTITIONS[name])
        connection.register(
            "asked", pa.table({"kind": [asked.kind] * len(asked.hashes), "sha256": list(asked.hashes)}, schema=_ASKED)
        )
        for query in ("erased_place", "known_interactions"):
            run(connection, f"erasing/{query}")
        connection.register(
            "asked_sources",
            pa.table({"workload": [asked.workload] * len(asked.sources), "source": list(asked.sources)}, schema=_SOURCES),
        )
        run(connection, "erasing/asked_objects")
        if asked.kind == "source":
            run(connection, "erasing/selected_source")
        else:
            run(connection, "erasing/selected", **key)
            run(connection, "erasing/same_sessions" if asked.kind == "user" else "erasing/same_texts")
        for query in ("derived", "erased_ids"):
            run(connection, f"erasing/{query}")
        connection.create_function("user_of", user_of, ["VARCHAR"], "VARCHAR")
        for macro in (*MACROS, "composing/seeds/exchanges_of", "reading/macros/user_name"):
            run(connection, macro)
        run(connection, "erasing/exchanges", **key)
        run(connection, "erasing/further_tombstones", **key)
        run(connection, "erasing/erased_hashes")
        yield Selection(connection, tables, asked.kind == "source")


def remove_rows(tables: Tables, selection: Selection, table: str) -> int:
    """Rewrites the partitions of a table that hold erased rows, some days in one commit; returns the number of rows."""
    changes = selection.changes(table)
    for workload in sorted({workload for workload, _ in changes}):
        parts = [part for of, part in changes if of == workload]
        for first in range(0, len(parts), DAYS_TOGETHER):
            some = parts[first : first + DAYS_TOGETHER]
            where = {} if _partition(table) == "workload" else {_partition(table): some}
            tables.replace(table, selection.remaining(table, workload, some), workload=workload, **where)
    return sum(changes.values())


def _about(table: str, query: str) -> str:
    return sql_text(f"erasing/{query}").format(marked=f"marked_{table}", partition=_partition(table))


def _partition(table: str) -> str:
    """The column that tells a workload's partitions apart."""
    return PARTITIONS[table][-1]

"""Recognises objects that were moved by their content, so that their records are not ingested again.

    moved = find_moved(connection, "gateway")        # inside a Ledger, after the source's whole listing was noticed
    rename_rows(tables, moved, workloads)            # rows and decisions get the new uri

An object has moved if its source no longer lists its uri, and lists a new one with its size and content (sha256; in lakes
without stored hashes, etag and name). Its rows, days and decisions stay. A copy that is listed together with its original has
not moved: it is read, and its records are `repeated_record`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from datetime import UTC

import duckdb
import pyarrow as pa

from resources.reading.listing import LogObject
from resources.reading.prefetch import prefetched
from resources.sql_files import attach_slice, rows, run, sql_text, stream, workbench
from resources.tables import Tables

SAME_PARTS = (8, 4, 2, 1, 0)
"""Trailing path parts that must agree, tried in turn: of several objects with one content, the most similar path wins."""

_DIGESTS = pa.schema([("uri", pa.string()), ("content_sha256", pa.string())])
_MOVED = pa.schema([("old_uri", pa.string()), ("uri", pa.string())])


def find_moved(connection: duckdb.DuckDBPyConnection, source: str) -> pa.Table:
    """Pairs (old_uri, uri) of a source's moved objects; also left in the connection as table `moved`."""
    run(connection, "reading/ledger/moved")
    run(connection, "reading/ledger/gone", source=source)
    if not connection.table("gone").shape[0]:
        return _MOVED.empty_table()
    run(connection, "reading/ledger/arrived", source=source)
    found = rows(connection, "reading/ledger/to_digest").to_pylist()
    connection.register("digests", pa.Table.from_pylist(list(digests(found)), schema=_DIGESTS))
    for by_content in (True, False):
        for depth in SAME_PARTS if by_content else SAME_PARTS[:-1]:
            run(connection, "reading/ledger/match_moved", by_content=by_content, depth=depth)
    connection.unregister("digests")
    return connection.table("moved").to_arrow_table()


def digests(found: list[dict]) -> Iterator[dict[str, str]]:
    """sha256 of the objects' bytes. Unreadable objects are left out: the ingest reports them."""
    items = (LogObject(**{**item, "modified": item["modified"].astimezone(UTC)}) for item in found)
    for item, opened in prefetched(items):
        try:
            with opened() as file:
                yield {"uri": item.uri, "content_sha256": hashlib.file_digest(file, "sha256").hexdigest()}
        except OSError:
            continue


def rename_rows(tables: Tables, moved: pa.Table, workloads: Collection[str]) -> None:
    """Replaces the old uri with the new one in all rows of moved objects. Safe to repeat after a crash."""
    for workload in sorted(workloads):
        with workbench() as connection:
            connection.register("moved", moved)
            for table in ("decisions", "quarantine", "feedback", "interactions"):
                attach_slice(connection, tables, table, workload)
            run(connection, "reading/moved/ingest_decisions")
            if any(_names(connection, "ingest_decisions", f"detail ->> '$.{key}'") for key in ("uri", "kept_uri")):
                tables.replace("decisions", stream(connection, "reading/moved/decisions"), workload=workload, stage="ingest")
            if _names(connection, "quarantine", "source_uri"):
                tables.replace("quarantine", stream(connection, "reading/moved/quarantine"), workload=workload)
            for table in ("feedback", "interactions"):
                days = [day for (day,) in connection.execute(sql_text("reading/moved/days").format(table=table)).fetchall()]
                if days:
                    renamed = connection.sql(sql_text("reading/moved/rows").format(table=table), params={"days": days})
                    tables.replace(table, renamed.to_arrow_reader(10_000), workload=workload, dt=days)


def _names(connection: duckdb.DuckDBPyConnection, table: str, column: str) -> bool:
    return connection.execute(sql_text("reading/moved/are_named").format(table=table, column=column)).fetchall()[0][0]

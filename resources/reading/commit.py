"""Commits a staged batch to the tables interactions, feedback, quarantine and decisions.

    attach_tables(tables, stage, workloads_of(workload, sources))    # makes the tables readable in the batch's DuckDB
    commit(tables, stage)                                            # after the queries of ingest._read

Partitions that only gain rows are appended to; partitions that lose rows (of an object that is read again, or a copy that is
replaced) are rewritten. Decisions are committed first, the ledger last. After a crash between two commits, affected objects
are unread in the ledger, or are named by a committed decision, and are read again.
"""

from __future__ import annotations

import duckdb

from resources.reading.sources import SourceSettings
from resources.reading.staging import Staging
from resources.sql_files import attach_files, run, slice_files, stream
from resources.tables import PARTITIONS, SCHEMAS, Tables

EVERYWHERE = "*"
"""The workload of tombstones that count in every workload."""

ORDER = ("decisions", "quarantine", "feedback", "interactions")


def workloads_of(workload: str, sources: dict[str, SourceSettings]) -> set[str]:
    """All workloads that the records of a recipe's sources may go to."""
    return {workload, *(name for source in sources.values() for name in source.workloads.values())}


def attach_tables(tables: Tables, stage: Staging, workloads: set[str]) -> None:
    """Makes the tables readable in the stage's DuckDB, of these workloads; tombstones also of workload *, which means all."""
    for name in ORDER:
        attach(stage.connection, tables, name, workloads)
    attach(stage.connection, tables, "erasures", {*workloads, EVERYWHERE})


def attach(connection: duckdb.DuckDBPyConnection, tables: Tables, name: str, workloads: set[str]) -> None:
    """Makes several workloads' rows of a table readable under the table's name."""
    files = [file for each in sorted(workloads) for file in slice_files(tables, name, each)]
    attach_files(connection, name, SCHEMAS[name], files, PARTITIONS[name])


def commit(tables: Tables, stage: Staging) -> None:
    """Writes the batch's rows and removes the rows that they replace."""
    connection = stage.connection
    run(connection, "reading/commit/new_quarantine", workload=stage.workload)
    for view in ("new_decisions", "new_feedback", "new_interactions"):
        run(connection, f"reading/commit/{view}")
    for table in ORDER:
        run(connection, f"reading/commit/{table}_rewritten")
        tables.append(table, stream(connection, f"reading/commit/{table}_added"))
        for values in connection.table("rewritten").fetchall():
            partition = dict(zip(PARTITIONS[table], values, strict=True))
            tables.replace(table, stream(connection, f"reading/commit/{table}_partition", **partition), **partition)

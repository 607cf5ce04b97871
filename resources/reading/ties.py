"""Ties feedback to its interaction, whichever of them was read first.

    tied = tie(tables, {"math-tutor"})           # at the end of an ingest, over all that is in the tables
    tied.days["math-tutor"][date(2026, 6, 1)]    # {"request": 12, "several": 1, "unknown": 2}

The most specific id of a record decides: interaction, else request, trace, session. Curation uses the same views
(resources/curating/row_feedback.py). Where the id belongs to exactly one interaction, `interaction_id` gets it; where it
belongs to several (a session, a request with two choices) or to none, the record stays untied and `tie` says why. Every run
ties all feedback again, so the order of reading does not matter; only days that changed are written.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import date
from itertools import groupby

import duckdb

from resources.reading.commit import attach
from resources.sql_files import attach_files, run, slice_files, stream, workbench
from resources.tables import PARTITIONS, SCHEMAS, Tables

TIES = ("interaction", "request", "gateway", "trace", "session")
"""Values of `tie` for feedback with exactly one interaction. Any other value says why it has none."""


@dataclass(frozen=True)
class Ties:
    """Feedback and what it is tied by."""

    days: dict[str, dict[date, dict[str, int]]] = field(default_factory=dict)
    """Counts of feedback by workload, day and `tie`."""
    changed: dict[str, list[date]] = field(default_factory=dict)
    """The days whose ties changed in this run, by workload."""


def attach_feedback_ids(connection: duckdb.DuckDBPyConnection) -> None:
    """Views `feedback_by_id` (each record's most specific id) and `interaction_ids` (all ids of each of `conversations`)."""
    run(connection, "reading/ties/feedback_by_id")
    run(connection, "reading/ties/interaction_ids")


def tie(tables: Tables, workloads: Collection[str]) -> Ties:
    """Ties the feedback of some workloads and commits the days whose ties changed, one commit per workload."""
    with_feedback = {workload for workload in workloads if slice_files(tables, "feedback", workload)}
    if not with_feedback:
        return Ties()
    with workbench() as connection:
        attach(connection, tables, "feedback", with_feedback)
        # interactions of all workloads: `tie` says where feedback is about another workload's interaction
        files = tables.files("interactions")
        attach_files(connection, "interactions", SCHEMAS["interactions"], files, PARTITIONS["interactions"])
        run(connection, "reading/ties/conversations")
        attach_feedback_ids(connection)
        for query in ("ties", "tied"):
            run(connection, f"reading/ties/{query}")
        found = run(connection, "reading/ties/changed_days").fetchall()
        changed = {workload: [day for _, day in rows] for workload, rows in groupby(found, key=lambda row: row[0])}
        counted: dict[str, dict[date, dict[str, int]]] = {workload: {} for workload in with_feedback}
        for workload, days in counted.items():
            for day, by, records in run(connection, "reading/ties/counts", workload=workload).fetchall():
                days.setdefault(day, {})[by] = records
        for workload, days in changed.items():
            tables.replace("feedback", stream(connection, "reading/ties/feedback_of_days", workload=workload, days=days),
                           workload=workload, dt=days)
    return Ties(counted, changed)

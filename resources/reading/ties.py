"""Ties feedback to its interaction, whichever was read first. The most specific id of a record decides: interaction, else
request, trace, session. Where it belongs to one interaction, `interaction_id` gets it; else `tie` says why not. Every run ties
all feedback again, and only days that changed are written."""

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import date
from itertools import groupby

import duckdb

from resources.digests import AnswerCache, partition_key, source_digest
from resources.lake import PARTITIONS, SCHEMAS, Tables, attach_files, run, slice_files, stream, workbench
from resources.reading.commit import attach

TIES = ("interaction", "request", "gateway", "answer", "trace", "session")
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
        [by_text] = run(connection, "reading/ties/names_answers").fetchone()
        run(connection, f"reading/ties/conversations{'_by_text' if by_text else ''}")
        attach_feedback_ids(connection)
        for query in ("ties", "tied"):
            run(connection, f"reading/ties/{query}")
        changes = run(connection, "reading/ties/changed_days").fetchall()
        changed = {workload: [day for _, day in group] for workload, group in groupby(changes, key=lambda row: row[0])}
        counted: dict[str, dict[date, dict[str, int]]] = {workload: {} for workload in with_feedback}
        for workload, days in counted.items():
            for day, by, records in run(connection, "reading/ties/counts", workload=workload).fetchall():
                days.setdefault(day, {})[by] = records
        for workload, dates in changed.items():
            rows = stream(connection, "reading/ties/feedback_of_days", workload=workload, days=dates)
            tables.replace("feedback", rows, workload=workload, dt=dates)
    return Ties(counted, changed)


def ties_of(tables: Tables, workload: str, workloads: Collection[str]) -> Ties:
    """Ties the feedback of some workloads (`ties.tie`). If neither table was written to since the last call for `workload`,
    returns the remembered counts and no changed day."""
    memory = AnswerCache(tables.lake, f"ties/{workload}", code=source_digest("resources/reading/ties.py"))
    if (remembered := memory.get(_key(tables, workloads))) is not None:
        return Ties(
            {
                of: {date.fromisoformat(day): counts for day, counts in days.items()}
                for of, days in json.loads(remembered).items()
            }
        )
    ties = tie(tables, workloads)
    days = {of: {day.isoformat(): counts for day, counts in of_days.items()} for of, of_days in ties.days.items()}
    memory.keep({_key(tables, workloads): json.dumps(days)})
    return ties


def _key(tables: Tables, workloads: Collection[str]) -> str:
    return partition_key([*tables.files("interactions"), *tables.files("feedback")], *sorted(workloads))

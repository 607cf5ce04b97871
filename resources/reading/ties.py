"""Ties feedback to its interaction, whichever of them was read first.

    tied = tie(tables, {"math-tutor"})           # at the end of an ingest, over all that is in the tables
    tied.days["math-tutor"][date(2026, 6, 1)]    # {"request": 12, "several": 1, "unknown": 2}

The most telling id that a record gives decides, as it does for curation (`resources/curating/opinions.py`). Where it names
exactly one interaction, that one's id goes into `interaction_id`; where it names several (a session, a request of two choices)
or none, the record stays untied, and `tie` says why. All is asked anew in every run, so that the order of reading does not
matter; only days with news are written.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import date
from itertools import groupby

from resources.curating.opinions import name
from resources.reading.commit import attach
from resources.sql_files import attach_files, run, slice_files, stream, workbench
from resources.tables import PARTITIONS, SCHEMAS, Tables

TIES = ("interaction", "request", "gateway", "trace", "session")
"""Ids by which feedback is tied to an interaction. Any other word in `tie` says why it is not."""


@dataclass(frozen=True)
class Ties:
    """By workload and day, feedback by what ties it; and the days that have news."""

    days: dict[str, dict[date, dict[str, int]]] = field(default_factory=dict)
    news: dict[str, list[date]] = field(default_factory=dict)


def tie(tables: Tables, workloads: Collection[str]) -> Ties:
    """Ties the feedback of some workloads, and commits the days whose ties have changed, one commit a workload."""
    told = {workload for workload in workloads if slice_files(tables, "feedback", workload)}
    if not told:
        return Ties()
    with workbench() as connection:
        attach(connection, tables, "feedback", told)
        # all workloads: what is about another one's interaction is said to be
        files = tables.files("interactions")
        attach_files(connection, "interactions", SCHEMAS["interactions"], files, PARTITIONS["interactions"])
        run(connection, "reading/ties/conversations")
        name(connection)
        for query in ("ties", "tied"):
            run(connection, f"reading/ties/{query}")
        found = run(connection, "reading/ties/changed_days").fetchall()
        news = {workload: [day for _, day in rows] for workload, rows in groupby(found, key=lambda row: row[0])}
        counted: dict[str, dict[date, dict[str, int]]] = {workload: {} for workload in told}
        for workload, days in counted.items():
            for day, by, records in run(connection, "reading/ties/counts", workload=workload).fetchall():
                days.setdefault(day, {})[by] = records
        for workload, days in news.items():
            tables.replace("feedback", stream(connection, "reading/ties/feedback_of_days", workload=workload, days=days),
                           workload=workload, dt=days)
    return Ties(counted, news)

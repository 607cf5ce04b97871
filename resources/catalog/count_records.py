"""Counts a workload's records in the catalog: read, kept, dropped by each rule, quarantined."""

from __future__ import annotations

from resources.catalog.catalog import query
from resources.curating.record_counts import RecordCounts
from resources.lake import Lake
from resources.sql_files import sql_text


def count_records(lake: Lake, workload: str, curate_version: str) -> RecordCounts:
    """Counts a workload's records at one version of its curation. Raises CountsError unless they add up."""
    parameters = {"workload": workload, "curate_version": curate_version}
    rows = query(lake, sql_text("curating/record_counts/by_decision"), parameters).to_pylist()
    read = query(lake, sql_text("curating/record_counts/records_read"), {"workload": workload}).to_pylist()[0]["records"]

    def by_rule(outcome: str) -> dict[str, int]:
        return {f"{row['stage']}: {row['rule']}": row["records"] for row in rows if row["outcome"] == outcome}

    counts = RecordCounts(read, sum(by_rule("kept").values()), by_rule("dropped"), by_rule("quarantined"))
    counts.check()
    return counts

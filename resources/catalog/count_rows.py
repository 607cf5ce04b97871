"""Counts what became of a workload's records, from the catalog: how many were read, kept, dropped by each rule, quarantined."""

from __future__ import annotations

from resources.catalog.catalog import query
from resources.curating.row_fates import RowFates
from resources.lake import Lake
from resources.sql_files import sql_text


def row_fates(lake: Lake, workload: str, curate_version: str) -> RowFates:
    """The fates of a workload's records at one version of its curation. Raises CountsError unless they add up."""
    parameters = {"workload": workload, "curate_version": curate_version}
    rows = query(lake, sql_text("curating/record_counts/by_decision"), parameters).to_pylist()
    read = query(lake, sql_text("curating/record_counts/records_read"), {"workload": workload}).to_pylist()[0]["records"]

    def by_rule(fate: str) -> dict[str, int]:
        return {f"{row['stage']}: {row['rule']}": row["records"] for row in rows if row["fate"] == fate}

    fates = RowFates(read, sum(by_rule("kept").values()), by_rule("dropped"), by_rule("quarantined"))
    fates.check()
    return fates

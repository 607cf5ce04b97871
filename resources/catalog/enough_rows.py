"""Says why a run should stop after curation: no row is left, or most of the logs could not be read.

    shortage(lake, "tutor", RecordCounts.of(manifest), ["gateway", "app"], seeds=0)     # one sentence; "" if the run can go on
"""

from __future__ import annotations

from collections.abc import Collection

from model_ops.wording import counted
from resources.catalog.catalog import query
from resources.curating.record_counts import RecordCounts
from resources.lake import Lake
from resources.sql_files import sql_text

LEAST_SHARE = 0.1
"""Share of the bytes from which a source without a row stops the run, and of the records that have to be readable."""
_REMEDY = ("`millrace check RECIPE` says what format or fields would read them, and `millrace sql \"select source_uri, "
           "source_row, message from quarantine limit 5\"` shows some")
MOST_RULES = 4


def shortage(lake: Lake, workload: str, counts: RecordCounts, sources: Collection[str], seeds: int) -> str:
    """Why too few rows are left; "" if there are enough. seeds: number of sources of examples beside the traffic."""
    quarantined = sum(counts.quarantined.values())
    left = f"{counted(counts.kept, 'row')} of {counted(counts.read, 'record')} can be trained on"
    lost = query(lake, sql_text("curating/record_counts/lost_sources"), {"workload": workload, "sources": sorted(sources)})
    for source in lost.to_pylist():
        if source["share"] >= LEAST_SHARE:
            its = f"its {counted(source['objects'], 'object')}, {source['share']:z.0%} of the logs' bytes"
            return (f"source {source['source']} left no row: {its}, cannot be read ({source['code']}: {source['message']}), "
                    f"and {left}; correct its format or fields, or take it out of the recipe; {_REMEDY}")
    if quarantined and counts.read - quarantined < LEAST_SHARE * counts.read:
        return f"{quarantined:,} records are in quarantine ({_rules(counts.quarantined)}), and {left}; {_REMEDY}"
    if not counts.kept and not seeds:
        return (f"no row is left to train on: of {counts.read:,} records, {sum(counts.dropped.values()):,} were dropped and "
                f"{quarantined:,} are in quarantine ({_rules(counts.dropped | counts.quarantined) or 'none was read'}); "
                "loosen the rules under curation, or add logs whose requests have answers")
    return ""


def _rules(counts: dict[str, int]) -> str:
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{rule} {count:,}" for rule, count in order[:MOST_RULES])
